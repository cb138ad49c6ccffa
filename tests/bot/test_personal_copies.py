"""People notified by direct message get the card, and all copies are one card."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.ids import Action
from keyturn.bot.listeners.usable_copy import is_usable_copy
from keyturn.bot.payload import Clicked
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import (
    CHANNEL,
    NOTIFY_DM,
    TEAM,
    Stack,
    has_button,
    is_card_of,
    says,
)
from tests.conftest import eventually

DM = {"U0ANA": "D0ANA", "U0BEN": "D0BEN", "U0CHLOE": "D0CHLOE"}


@pytest.fixture
def direct(stack: Stack) -> Stack:
    stack.put_policy(NOTIFY_DM)
    return stack


async def copy_of(
    stack: Stack, verdict: Verdict, user: str, words: str = ""
) -> JsonObject:
    """Wait for a person's copy of a card, with these words."""
    approval = (await stack.approval(verdict)).id
    return await stack.actor(user).message_with(
        DM[user], lambda m: is_card_of(m, approval) and says(words)(m)
    )


async def copies_of(stack: Stack, verdict: Verdict, user: str) -> list[JsonObject]:
    approval = (await stack.approval(verdict)).id
    return [
        m for m in await stack.actor(user).messages(DM[user]) if is_card_of(m, approval)
    ]


async def test_a_decision_on_one_copy_is_shown_on_all(direct: Stack) -> None:
    async with direct.running():
        verdict = await direct.refund()
        card = await direct.card(verdict, says("Sent directly to"))
        anas = await copy_of(direct, verdict, "U0ANA")
        bens = await copy_of(direct, verdict, "U0BEN")

        # The requester is not notified; a person with a copy is not mentioned.
        assert "<@U0ANA>" in str(card)
        asked = [
            one for one in as_objects(card["blocks"]) if "Requested by" not in str(one)
        ]
        assert "<@U0DAN>" not in str(asked)
        assert not card["mentions_me"]
        assert has_button(anas, Action.APPROVE)
        await direct.actor("U0BEN").click(DM["U0BEN"], str(bens["ts"]), Action.APPROVE)

        assert (await direct.item(verdict)).state is ItemState.AUTHORIZED
        await direct.card(verdict, says("Approved"))
        for user in ("U0ANA", "U0BEN"):
            shown = await copy_of(direct, verdict, user, "Approved")
            assert not has_button(shown, Action.APPROVE)
        await direct.execute(verdict)
        for user in ("U0ANA", "U0BEN"):
            await copy_of(direct, verdict, user, ", done ")
        await direct.nothing_is_left()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_lost_copy_becomes_true(direct: Stack, *, is_restarted: bool) -> None:
    direct.sandbox.faults.plan("lost_response", "chat.postMessage", after=1)
    direct.sandbox.faults.plan("http_500", "conversations.history", calls=20)
    async with direct.running():
        verdict = await direct.refund()
        card = await direct.card(verdict)
        await eventually(lambda: asked_for(direct, "conversations.history"))
        lost = [u for u in ("U0ANA", "U0BEN") if await copies_of(direct, verdict, u)]
        await direct.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await direct.card(verdict, says("Approved"))
        if not is_restarted:
            direct.sandbox.faults.clear()
            await direct.execute(verdict)
            await direct.nothing_is_left()
    if is_restarted:
        direct.sandbox.faults.clear()
        async with direct.running():
            await direct.execute(verdict)
            await direct.nothing_is_left()

    assert lost
    for user in lost:
        (copy,) = await copies_of(direct, verdict, user)
        assert says(", done ")(copy)
        assert not has_button(copy, Action.APPROVE)


async def test_a_copy_that_a_bot_began_without_an_event_is_posted_by_the_next(
    direct: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct.running():
        verdict = await direct.refund()
        for user in ("U0ANA", "U0BEN"):
            await copy_of(direct, verdict, user)
        await direct.nothing_is_left()
    people = direct.sandbox.workspace.groups["S0SUPPORT"].users
    direct.sandbox.workspace.set_group("S0SUPPORT", [*people, "U0CHLOE"])
    approval = (await direct.approval(verdict)).id
    post = CardPublisher.post

    async def until_cut_off(
        publisher: CardPublisher, channel: str, *args: Any, **kwargs: Any
    ) -> tuple[str, str]:
        if channel == DM["U0CHLOE"]:
            raise LeaseLost
        return await post(publisher, channel, *args, **kwargs)

    async def is_begun() -> bool:
        place = await direct.store.cards.place(direct.keys, approval)
        return place is not None and "U0CHLOE" in place.copies

    with monkeypatch.context() as cut:
        cut.setattr(CardPublisher, "post", until_cut_off)
        async with direct.running():
            await eventually(is_begun)
    async with direct.running():
        await copy_of(direct, verdict, "U0CHLOE")


async def test_no_copy_is_posted_to_a_forged_place(direct: Stack) -> None:
    verdict = await direct.refund()
    approval = (await direct.approval(verdict)).id
    written = {f"dm {user}": "C0GENERAL" for user in DM}
    fields = [text for pair in written.items() for text in pair]
    name = direct.keys.card(approval)
    await direct.store.conn.command("HSET", name, *fields)
    await direct.store.conn.command("PEXPIRE", name, 60_000)
    async with direct.running():
        for user in ("U0ANA", "U0BEN"):
            await copy_of(direct, verdict, user)
        await direct.nothing_is_left()

    posted = await direct.actor("U0ANA").messages("C0GENERAL")
    assert not any(is_card_of(one, approval) for one in posted)


async def asked_for(stack: Stack, method: str) -> bool:
    return any(call.method == method for call in stack.sandbox.calls)


async def test_a_person_without_direct_messages_is_mentioned(direct: Stack) -> None:
    direct.sandbox.faults.plan("refuse", "conversations.open", calls=2)
    async with direct.running():
        verdict = await direct.refund()
        card = await direct.card(verdict)

        await direct.note(card, "No direct message to")
        await direct.nothing_is_left()
        is_needed = says("Your decision is needed")
        (note,) = [one for one in await direct.notes(card) if is_needed(one)]
        assert all(f"<@{user}>" in str(note) for user in ("U0ANA", "U0BEN"))
        place = await direct.drawn(verdict)
        assert place.sent == ()
        assert "Sent directly" not in str(await direct.card(verdict))


async def test_a_stuck_copy_says_so_and_takes_no_click(direct: Stack) -> None:
    async with direct.running():
        verdict = await direct.refund()
        card = await direct.card(verdict, says("Sent directly to"))
        bens = await copy_of(direct, verdict, "U0BEN")
        await direct.nothing_is_left()
        workspace = direct.sandbox.workspace
        anas = (await copies_of(direct, verdict, "U0ANA"))[0]
        workspace.drop_message(workspace.messages[DM["U0ANA"]][str(anas["ts"])])
        direct.sandbox.control.edit_window(0.0)

        await direct.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        note = await direct.actor("U0BEN").message_with(
            DM["U0BEN"], says("shows an older state")
        )
        assert note["thread_ts"] == bens["ts"]
        assert "edit_window_closed" in str(note["blocks"])
        await direct.actor("U0BEN").click(DM["U0BEN"], str(bens["ts"]), Action.APPROVE)
        await direct.told("U0BEN", "nothing was recorded", DM["U0BEN"])
        assert len((await direct.item(verdict)).votes) == 1


async def test_a_clicked_copy_never_becomes_the_card(direct: Stack) -> None:
    async with direct.running():
        verdict = await direct.refund()
        bens = await copy_of(direct, verdict, "U0BEN")
        await direct.card(verdict, says("Sent directly to"))
        place = await direct.drawn(verdict)
    keys, approval = direct.keys, (await direct.approval(verdict)).id
    cards = direct.store.cards
    ctx = SimpleNamespace(service=direct.reviews, config=direct.config)

    async def is_usable(user: str, ts: str) -> bool:
        action = block_action(user, DM["U0BEN"], ts)
        place = await cards.place(keys, approval)
        return await is_usable_copy(ctx, action, keys, approval, place)  # type: ignore[arg-type]

    # Slack shows a direct message to its person alone; the record names the person.
    at = str(bens["ts"])
    assert not any([await is_usable(user, at) for user in ("U0ANA", "U0CHLOE")])
    await cards.forget_message(keys, approval, (place.channel, place.ts))
    assert await is_usable("U0BEN", at)
    assert not await is_usable("U0BEN", "1.000001")
    assert await cards.place(keys, approval) is None

    async with direct.running():
        await direct.card(verdict, lambda m: m["ts"] != place.ts)
        await direct.nothing_is_left()
        assert len(await copies_of(direct, verdict, "U0BEN")) == 1


def block_action(user: str, channel: str, ts: str) -> Clicked:
    return Clicked.read(
        {
            "type": "block_actions",
            "team": {"id": TEAM},
            "user": {"id": user},
            "channel": {"id": channel},
            "container": {"message_ts": ts},
            "trigger_id": "1",
            "actions": [{"action_id": "approve", "block_id": "b"}],
        }
    )
