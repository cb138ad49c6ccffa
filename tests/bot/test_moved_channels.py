"""A channel with a new id, or of another workspace, is served like others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keyturn.bot.delivery import redacting
from keyturn.bot.ids import Action, Input
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.samples import OTHER_TEAM
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says
from tests.bot.test_redacted_messages import (
    DAY,
    OVER,
    decided,
    no_canary,
    time_is_over,
)
from tests.conftest import eventually

NEW = "C0SHARED"
NEWEST = "C0NEWEST"


async def shared(stack: Stack, thread: str = "t1") -> tuple[Verdict, str]:
    """Post a card whose channel has another id then; return its call and its ts."""
    verdict = await stack.refund(thread)
    ts = str((await stack.card(verdict))["ts"])
    await stack.nothing_is_left()
    stack.sandbox.control.share(CHANNEL, NEW)
    return verdict, ts


async def reject_by_words(stack: Stack, ts: str, channel: str = NEW) -> None:
    """Give a reason in the thread of a card, and reject by the offered form."""
    ana = stack.actor("U0ANA")
    await ana.say(channel, "@keyturn too much", ts)
    offer = await ana.message_with(
        channel, lambda m: has_button(m, Action.REJECT_WORDS)
    )
    await ana.click(channel, str(offer["ts"]), Action.REJECT_WORDS)
    form = await ana.wait_for_view()
    assert "too much" in str(form["blocks"])
    assert await ana.submit({Input.REASON: "too much"}) == {}


async def test_words_under_a_card_of_a_moved_channel_count(live: Stack) -> None:
    """Its channel has been given two ids, and the policy names the first one."""
    verdict, ts = await shared(live)
    other, other_ts = await second(live)
    await live.actor("U0ANA").click(NEW, ts, Action.APPROVE)
    await live.card(verdict, says("Waiting to run"), channel=NEW)
    live.sandbox.control.share(NEW, NEWEST)

    await reject_by_words(live, other_ts, NEWEST)

    assert (await live.item(other)).state is ItemState.REJECTED
    await live.card(other, says("Rejected"), channel=NEWEST)


async def second(stack: Stack) -> tuple[Verdict, str]:
    """Post a card in the channel while it has its second id."""
    named = stack.policy
    stack.put_policy((CHANNEL, NEW))
    verdict = await stack.refund("t2")
    ts = str((await stack.card(verdict, channel=NEW))["ts"])
    await stack.drawn(verdict)
    stack.policy = named
    return verdict, ts


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "not used"])
async def test_what_stands_there_is_redacted(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, *, is_used: bool
) -> None:
    monkeypatch.setattr(redacting, "LOOK_S", 0.02)
    monkeypatch.setattr(redacting, "_RESERVE", 0)
    monkeypatch.setattr(redacting, "RETRY", timedelta(0))

    async with stack.running(messages_kept=DAY):
        await decided(stack)
        _, ts = await shared(stack, "t2")
        if is_used:
            await stack.actor("U0ANA").click(NEW, ts, Action.APPROVE)
            await stack.nothing_is_left()
    await time_is_over(stack)
    async with stack.running(messages_kept=OVER):
        if not is_used:
            # The search failed before a person used a card there.
            await eventually(lambda: was_refused(stack))
            await stack.actor("U0ANA").click(NEW, ts, Action.APPROVE)
        await eventually(lambda: no_canary(stack))


async def was_refused(stack: Stack) -> bool:
    return any(
        call.method == "chat.update" and call.error == "channel_not_found"
        for call in stack.sandbox.calls
    )


async def test_only_a_bot_notes_where_a_channel_moved(stack: Stack) -> None:
    store, keys = stack.store.moved_channels, stack.keys
    name = keys.moved_channels
    await store.note(keys, CHANNEL, NEW)
    sealed = await stack.store.conn.command("HGET", name, CHANNEL)
    assert isinstance(sealed, bytes)
    forged = {"C1": b"C0EVIL", "C2": sealed}

    for was, stored in forged.items():
        await stack.store.conn.command("HSET", name, was, stored)

    assert await store.known(keys) == {CHANNEL: NEW}


async def test_the_bot_answers_in_a_channel_of_another_workspace(live: Stack) -> None:
    live.sandbox.control.host(CHANNEL, OTHER_TEAM)
    card = await live.card(await live.refund())
    ana = live.actor("U0ANA")

    await ana.say(CHANNEL, "@keyturn too much", str(card["ts"]))
    await live.actor("U0DAN").say(CHANNEL, "@keyturn refund order 78291")

    await ana.message_with(CHANNEL, lambda m: has_button(m, Action.REJECT_WORDS))

    async def is_asked() -> bool:
        return await live.store.queue(live.keys).depth() == 1

    await eventually(is_asked)
