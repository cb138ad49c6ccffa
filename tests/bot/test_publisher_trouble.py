"""The publisher lives through a lost lease, a failing store and a refused bot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import card_updater, publisher, queue_sender
from keyturn.bot.delivery.card_copies import CopyUpdater
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.delivery.collecting import Collector
from keyturn.bot.delivery.outbox_queue import QueuedMessage, QueueEntry
from keyturn.bot.delivery.queue_sender import QueueSender
from keyturn.bot.ids import Action
from keyturn.bot.limits import Limits
from keyturn.bot.web import Slack, SlackNoResponse
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.events.outbox import Outbox
from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, ME, TEAM, Stack, has_button
from tests.conftest import eventually
from tests.lifetimes import lose_records
from tests.service.harness import ANA


@pytest.mark.slow
async def test_who_lost_the_lease_asks_for_it_again(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with stack.running():
            await stack.card(await stack.refund())
            lease = stack.keys.lease("", "slack:default")
            await stack.store.conn.command("DEL", lease)

            async def leads_again() -> bool:
                return caplog.text.count("publisher.leading") == 2

            await eventually(leads_again)
            await stack.card(await stack.refund(thread="t2"))


async def test_a_store_that_fails_for_a_while_is_asked_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = Outbox.take, 2

    async def failing(self: Outbox, *args: Any, **more: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("The store does not answer.")
        return await real(self, *args, **more)

    monkeypatch.setattr(publisher, "_RETRY_S", 0.02)
    monkeypatch.setattr(Outbox, "take", failing)
    async with stack.running():
        await stack.card(await stack.refund())


async def test_a_bot_that_slack_refuses_goes_on_when_it_is_helped(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(card_updater, "BROKEN_S", 0.05)
    async with stack.running():
        scopes = list(stack.sandbox.workspace.bot_scopes)
        stack.sandbox.control.scopes(["commands"])
        verdict = await stack.refund()

        async def is_refused() -> bool:
            return "publisher.bot_refused error=missing_scope" in caplog.text

        await eventually(is_refused)
        stack.sandbox.control.scopes(scopes)

        await stack.card(verdict)


@pytest.mark.slow
async def test_a_line_of_history_that_is_refused_is_dropped(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack.running():
        verdict = await stack.refund()
        await stack.card(verdict)
        approval = await stack.approval(verdict)
        stack.sandbox.faults.plan("rate_limit", "chat.postMessage", seconds=1)
        click = click_on(approval)
        ana = ANA.with_(team=TEAM, usergroups=frozenset({"S0SUPPORT"}))
        await stack.reviews.decide(click, Reject(reason="no"), ana)
        await stack.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        stack.sandbox.control.archive(CHANNEL)

        async def is_dropped() -> bool:
            return "message.dropped" in caplog.text

        await eventually(is_dropped)


async def test_an_approval_that_is_gone_is_let_go(stack: Stack) -> None:
    await stack.refund()
    await lose_records(stack.store.conn)
    outbox = stack.store.outbox(stack.keys, reader="slack:default")

    async with stack.running():
        await stack.card(await stack.refund(thread="t2"))
    await outbox.prepare()
    assert (await outbox.left("test"))[0] == []


async def test_a_silent_slack_is_asked_more_and_more_rarely(stack: Stack) -> None:
    async with card_publisher_of(stack) as card_publisher:
        entry = QueueEntry(key="ap", approval="ap", wanted=1)

        async def silent(_: str) -> None:
            raise SlackNoResponse("chat.update", "no answer")

        step = dispatcher_of(stack, card_publisher, silent).step

        waits = [await step(entry, None) for _ in range(8)]

    assert waits[:3] == [1.0, 2.0, 4.0]
    assert waits[-1] == 30.0


async def test_a_reply_is_given_up_once_the_store_can_acknowledge_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = Outbox.done, 1

    async def failing(self: Outbox, *seqs: str) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("The store does not answer.")
        await real(self, *seqs)

    async def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(queue_sender, "GIVE_UP_AFTER", 2)
    monkeypatch.setattr(CardPublisher, "post", broken)
    monkeypatch.setattr(Outbox, "done", failing)
    async with card_publisher_of(stack) as card_publisher:
        entry = QueueEntry(key="ap", approval="ap")
        entry.messages.append(QueuedMessage(Message((), "x"), "1-0", CHANNEL, "1.0"))
        step = dispatcher_of(stack, card_publisher, unread).step

        waits = [await step(entry, None) for _ in range(3)]

    assert waits == [2.0, 4.0, 0.0]
    assert entry.is_done
    assert "publisher.retrying" in caplog.text


async def test_a_message_without_a_response_is_given_up_after_a_day(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(*_: object, **__: object) -> Any:
        raise SlackNoResponse("chat.postMessage", "no answer")

    monkeypatch.setattr(CardPublisher, "post", silent)
    async with card_publisher_of(stack) as card_publisher:
        entry = QueueEntry(key="ap", approval="ap")
        entry.messages.append(QueuedMessage(Message((), "x"), "", CHANNEL, "1.0"))
        step = dispatcher_of(stack, card_publisher, unread).step

        for _ in range(2 * queue_sender.GIVE_UP_AFTER):
            await step(entry, None)
        is_retried = not entry.is_done
        monkeypatch.setattr(card_updater, "RETRY_FOR_S", 0.0)
        await step(entry, None)

    assert (is_retried, entry.is_done) == (True, True)
    assert "publisher.gave_up" in caplog.text


async def test_failures_of_slack_do_not_count_as_errors_of_a_message(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    error: Exception = SlackNoResponse("chat.postMessage", "no answer")

    async def failing(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(CardPublisher, "post", failing)
    async with card_publisher_of(stack) as card_publisher:
        entry = QueueEntry(key="ap", approval="ap")
        entry.messages.append(QueuedMessage(Message((), "x"), "", CHANNEL, "1.0"))
        step = dispatcher_of(stack, card_publisher, unread).step

        for _ in range(queue_sender.GIVE_UP_AFTER):
            await step(entry, None)
        error = ZeroDivisionError()
        await step(entry, None)

    assert not entry.is_done


async def test_a_card_without_a_response_is_given_up_when_its_approval_is_over(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = CardPublisher.post_card, 4

    async def failing(self: CardPublisher, *args: Any, **more: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise SlackNoResponse("chat.postMessage", "no answer")
        return await real(self, *args, **more)

    async def silent(*_: object, **__: object) -> Any:
        raise SlackNoResponse("chat.update", "no answer")

    monkeypatch.setattr(card_updater, "RETRY_FOR_S", 0.0)
    monkeypatch.setattr(queue_sender, "_LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(CardPublisher, "post_card", failing)
    async with stack.running():
        # A day of failures does not give up a card that people still need.
        verdict = await stack.refund()
        await stack.card(verdict)
        monkeypatch.setattr(CardPublisher, "update_card", silent)
        approval = await stack.approval(verdict)
        click = click_on(approval)
        ana = ANA.with_(team=TEAM, usergroups=frozenset({"S0SUPPORT"}))
        await stack.reviews.decide(click, Reject(reason="no"), ana)

        async def is_given_up() -> bool:
            trouble = await stack.store.cards.trouble(stack.keys, approval.id)
            return trouble is not None and trouble.why == card_updater.NO_RESPONSE

        await eventually(is_given_up)
        assert await stack.store.cards.outdated(stack.keys, 9) == []
    assert "card.undeliverable" in caplog.text


async def test_a_report_that_cannot_be_delivered_stops_nothing(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack.running():
        stack.sandbox.control.deactivate("U0DAN")
        await stack.submit(("lonely", {}))

        async def is_logged() -> bool:
            return "message.dropped" in caplog.text

        await eventually(is_logged)
        await stack.card(await stack.refund(thread="t2"))


async def test_without_anybody_to_tell_it_is_logged_alone(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack.running():
        await stack.submit(("lonely", {}), requester=None)

        async def is_logged() -> bool:
            return "card.undeliverable" in caplog.text

        await eventually(is_logged)
        await stack.card(await stack.refund(thread="t2"))


async def unread(_: str) -> None:
    """Know no record."""


def dispatcher_of(
    stack: Stack,
    card_publisher: CardPublisher,
    read: Callable[[str], Awaitable[None]],
) -> QueueSender:
    """Return a separate dispatcher for a test of one step."""
    updater = CardUpdater(
        card_publisher=card_publisher,
        copies=CopyUpdater(card_publisher),
        outbox=stack.store.outbox(stack.keys, reader="x"),
        read=read,
        clock=asyncio.get_running_loop().time,
    )
    collector = Collector(
        updater, stack.store.collected_cards, lambda _: None, lambda: False
    )
    return QueueSender(updater, collector, channel=str)


@asynccontextmanager
async def card_publisher_of(stack: Stack) -> AsyncGenerator[CardPublisher]:
    """Return a separate card publisher for a test of one step."""
    async with aiohttp.ClientSession() as session:
        yield CardPublisher(
            Slack(
                stack.sandbox.bot_token, api_url=stack.sandbox.api_url, session=session
            ),
            Limits(asyncio.get_running_loop().time),
            stack.store,
            stack.config,
            ME,
        )


async def test_a_failure_of_ours_is_tried_again_before_it_is_given_up(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = CardPublisher.post_card, 1

    async def failing(self: CardPublisher, *args: Any, **more: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ZeroDivisionError
        return await real(self, *args, **more)

    monkeypatch.setattr(queue_sender, "_LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(CardPublisher, "post_card", failing)
    async with stack.running():
        await stack.card(await stack.refund())
