"""Every event reaches Slack, through restarts, refusals and lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import cast

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import card_publisher, queue_sender
from keyturn.bot.delivery.publisher import Publisher
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, Stack, has_button, says
from tests.bot.tampering import expire
from tests.conftest import eventually

POST, UPDATE = "chat.postMessage", "chat.update"


def calls(stack: Stack, method: str, *, ok: bool = True) -> list[JsonObject]:
    """Return the arguments of the calls of a method that had an effect."""
    return [
        call.arguments
        for call in stack.sandbox.calls
        if call.method == method and (call.error is None) == ok
    ]


async def nothing_is_left(stack: Stack) -> None:
    """Wait until every event is read, posted and acknowledged."""

    async def is_done() -> bool:
        command = stack.store.conn.command
        reply = await command("XINFO", "GROUPS", stack.keys.outbox)
        for group in cast("list[list[object]]", reply):
            facts = dict(zip(group[::2], group[1::2], strict=True))
            if facts[b"name"] == b"slack:default":
                return facts[b"pending"] == 0 and facts[b"lag"] == 0
        return False

    await eventually(is_done)


async def test_a_button_works_after_a_restart(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
    async with stack.running():
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED
        assert len(await stack.cards(verdict)) == 1


async def test_a_dead_publishers_event_is_sent_by_the_next(stack: Stack) -> None:
    verdict = await stack.refund()
    outbox = stack.store.outbox(stack.keys, reader="slack:default")
    await outbox.prepare()
    assert await outbox.take("dead", block_ms=1)

    async with stack.running():
        await stack.card(verdict)
        await nothing_is_left(stack)


@pytest.mark.slow
async def test_a_click_on_an_unanswered_card_registers_it(stack: Stack) -> None:
    stack.sandbox.faults.plan("lost_response", POST)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        await nothing_is_left(stack)

        assert not (await stack.approval(verdict)).items[0].is_pending
        assert len(await stack.cards(verdict)) == 1


def archive(stack: Stack, card: JsonObject) -> None:
    del card
    stack.sandbox.control.archive(CHANNEL)


def remove(stack: Stack, card: JsonObject) -> None:
    workspace = stack.sandbox.workspace
    workspace.drop_message(workspace.messages[CHANNEL][str(card["ts"])])


def close_window(stack: Stack, card: JsonObject) -> None:
    del card
    stack.sandbox.control.edit_window(0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "place"),
    [(archive, "D0DAN"), (remove, "D0DAN"), (close_window, CHANNEL)],
)
async def test_a_card_that_cannot_change_any_more_is_told_where_it_can_be(
    stack: Stack, harm: Callable[[Stack, JsonObject], None], place: str
) -> None:
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await nothing_is_left(stack)
        harm(stack, card)
        await expire(stack, await stack.approval(verdict))
        await stack.sweeper.sweep()

        told = says("cannot be brought up to date")
        await stack.actor("U0DAN").message_with(place, told)
        await nothing_is_left(stack)


async def test_a_card_that_we_cannot_show_can_be_rejected_and_nothing_else(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Message:
        return Message(blocks=({"type": "nonsense"},), text="x")

    monkeypatch.setattr(card_publisher, "card", broken)
    async with stack.running():
        verdict = await stack.refund()

        card = await stack.card(verdict, says("cannot be displayed"))
        assert not has_button(card, Action.APPROVE)
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, str(card["ts"]), Action.REJECT, chosen="Call 1")
        await ana.wait_for_view()
        await ana.submit({"reason": "unreadable"})

        assert (await stack.approval(verdict)).items[0].state is ItemState.REJECTED


async def test_a_card_that_breaks_us_is_quarantined_and_tried_again_later(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> Message:
        raise ZeroDivisionError

    monkeypatch.setattr(queue_sender, "GIVE_UP_AFTER", 1)
    monkeypatch.setattr(card_publisher, "card", broken)
    monkeypatch.setattr(card_publisher, "plain_card", broken)
    async with stack.running():
        verdict = await stack.refund()

        await eventually(
            lambda: asyncio.sleep(0, "publisher.quarantined" in caplog.text)
        )
        monkeypatch.undo()
        stack.sandbox.control.advance(600)

        await stack.card(verdict)
        await nothing_is_left(stack)


@pytest.mark.slow
async def test_when_the_leading_bot_stops_the_other_takes_over(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishers: list[Noted] = []

    class Noted(Publisher):
        @property
        def is_leading(self) -> bool:
            return self._term is not None

        async def run(self, stop: asyncio.Event) -> None:
            publishers.append(self)
            await super().run(stop)

    monkeypatch.setattr("keyturn.bot.app.Publisher", Noted)

    async def leads(place: int) -> bool:
        return len(publishers) > place and publishers[place].is_leading

    async with AsyncExitStack() as standing_by:
        async with stack.running():
            await eventually(lambda: leads(0))
            await standing_by.enter_async_context(stack.running())
            await eventually(lambda: asyncio.sleep(0, len(publishers) == 2))
            assert not await leads(1)

        await stack.card(await stack.refund())

        assert await leads(1)


async def put(stack: Stack, name: EventName, **data: object) -> None:
    given = {key: str(value) for key, value in data.items() if key != "tier"}
    event = Event(
        name=name,
        tenant="default",
        agent="support",
        thread="t1",
        tool="post_notice",
        tier=str(data.get("tier", "")),
        channel=given.get("channel", ""),
        data=given,
    )
    await stack.store.outbox(stack.keys, reader="").put(event)


async def test_an_agents_last_words_are_plain_text(stack: Stack) -> None:
    async with stack.running():
        ts = await stack.actor("U0DAN").say("#general", "@keyturn refund")

        place = {"channel": "C0GENERAL", "thread_ts": ts}
        await put(stack, EventName.RUN_STARTED, **place)
        dan = stack.actor("U0DAN")
        await dan.message_with("#general", says("working on it"))
        await put(stack, EventName.RUN_FINISHED, text="*Done* <!channel>", **place)

        found = await dan.message_with("#general", says("Done"))
        assert found["thread_ts"] == ts
        assert "mrkdwn" not in str(found["blocks"])
        assert "Done" not in str(found["text"])


async def test_events_of_another_tenant_are_left_to_its_own_bot(stack: Stack) -> None:
    event = Event(
        name=EventName.RUN_FINISHED,
        tenant="other",
        data={"channel": "C0GENERAL", "text": "secret"},
    )
    await stack.store.outbox(stack.keys, reader="").put(event)
    async with stack.running():
        await stack.card(await stack.refund())
        await nothing_is_left(stack)

    assert "secret" not in str(calls(stack, POST))
