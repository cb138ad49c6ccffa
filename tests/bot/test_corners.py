"""The rare turns of the transports and of posting."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from keyturn.bot.app import SlackBot
from keyturn.bot.blocks import Message
from keyturn.bot.delivery import publisher
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, blocks_of, says
from tests.conftest import eventually
from tests.loop_watch import watched
from tests.panics import failing


async def test_a_surplus_copy_that_stays_is_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    approval = await stack.approval(await stack.refund())
    await stack.store.cards.posted(
        stack.keys, approval.id, channel=CHANNEL, ts="1.000001"
    )
    stack.sandbox.faults.plan("http_500", "chat.delete")

    async with stack.card_publisher() as posting:
        place = await posting.post_card(approval, channel=CHANNEL, now_ms=0)

    assert place.ts == "1.000001"
    assert "card.surplus_stays" in caplog.text
    [message] = await stack.actor("U0ANA").messages(CHANNEL)
    assert "was replaced" in str(message)


async def test_a_note_that_we_cannot_show_says_so(stack: Stack) -> None:
    broken = Message(blocks=({"type": "nonsense"},), text="a note")

    async with stack.card_publisher() as posting:
        await posting.post(CHANNEL, broken)

    shown = await stack.actor("U0ANA").messages(CHANNEL)
    assert says("cannot be displayed")(shown[-1])


async def test_a_call_that_hangs_at_the_end_is_given_up(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()

    async def hang(*_: object, **__: object) -> object:
        started.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(publisher, "_GRACE_S", 0.05)
    monkeypatch.setattr(CardPublisher, "post_card", hang)
    async with asyncio.timeout(30):
        async with stack.running():
            verdict = await stack.refund()
            await started.wait()

    assert (await stack.approval(verdict)).rev == 1


async def test_without_any_socket_the_bot_is_not_ready(stack: Stack) -> None:
    async with stack.running(mode=SlackMode.SOCKET):
        stack.sandbox.control.drop()

        await eventually(stack.problems)


async def test_an_event_that_breaks_a_listener_is_not_repeated(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, type(stack.reviews), "ask_agent", ZeroDivisionError())
    with caplog.at_level(logging.ERROR):
        async with stack.running():
            await stack.actor("U0DAN").say("#general", "@keyturn refund")

            await eventually(lambda: bool(stack.sandbox.requests))
            assert [one.status for one in stack.sandbox.requests] == [200]

    assert "listener.failed" in caplog.text


async def test_news_that_comes_while_a_card_is_drawn_is_told_by_its_own_record(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that is read for the card is older than the vote."""
    real, held = CardUpdater._post, list[EventName]()  # pyright: ignore[reportPrivateUsage] - the moment of the race

    async def drawn(self: CardUpdater, entry: Any, *rest: Any) -> Any:
        place = await real(self, entry, *rest)
        if not held:
            assert await stack.decide(verdict, Approve()) == "voted"

            async def has_come() -> bool:
                names = [event.name for event in entry.events]
                return EventName.ITEM_VOTED in names

            await eventually(has_come)
            held.append(EventName.ITEM_VOTED)
        return place

    monkeypatch.setattr(CardUpdater, "_post", drawn)
    (verdict,) = await stack.submit(("wire_money", {}))
    async with stack.running():
        card = await stack.card(verdict, says("1 of 2"))

        await stack.note(card, "approved")


async def test_a_card_is_posted_without_walking_its_arguments_on_the_event_loop(
    live: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watched(monkeypatch)
    verdict = await live.refund(order={f"k{n}": n for n in range(4000)})
    await live.card(verdict)

    assert found == []


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_card_links_to_the_message_that_asked_unless_it_is_direct(
    live: Stack, *, is_direct: bool
) -> None:
    ts = await live.actor("U0DAN").say("#agent-approvals", "please refund it")
    origin = Origin(channel="D0DAN" if is_direct else CHANNEL, thread_ts=ts)

    (verdict,) = await live.submit(("process_refund", REFUND), origin=origin)

    shown = blocks_of(await live.card(verdict))
    assert ("|conversation>" in shown) is not is_direct
    assert (f"/p{ts.replace('.', '')}|conversation>" in shown) is not is_direct


ASLEEP_S = 600.0


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="its clocks count suspension"
)
async def test_who_left_the_group_meanwhile_approves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux most clocks stop while the machine is suspended."""
    asleep_s, real = 0.0, time.clock_gettime

    def clock_gettime(clock: int) -> float:
        moved = asleep_s if clock == time.CLOCK_BOOTTIME else 0.0
        return real(clock) + moved

    async def state_of(verdict: Verdict) -> ItemState:
        return (await stack.item(verdict)).state

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    async with SlackBot(stack.config, stack.reviews) as bot:
        stack.bot = bot
        stack.sandbox.deliver_http(bot.url)
        ana = stack.actor("U0ANA")
        verdicts = [await stack.refund(thread=name) for name in ("t1", "t2")]
        first, second = [str((await stack.card(one))["ts"]) for one in verdicts]
        await ana.click(CHANNEL, first, Action.APPROVE)
        assert await state_of(verdicts[0]) is ItemState.AUTHORIZED

        stack.sandbox.control.set_group("S0SUPPORT", ["U0BEN"])
        asleep_s = ASLEEP_S
        stack.sandbox.clock.advance(ASLEEP_S)  # Slack was awake
        await ana.click(CHANNEL, second, Action.APPROVE)

        assert await state_of(verdicts[1]) is ItemState.PENDING
