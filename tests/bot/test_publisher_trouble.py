"""The publisher lives through a lost lease, a failing store and a refused bot."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keyturn.bot.delivery import card_updater, publisher, queue_sender
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.web import SlackNoResponse
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.events.outbox import Outbox
from tests.approvals.builders import click_on
from tests.bot.bot_stack import TEAM, Stack
from tests.bot.test_publisher import nothing_is_left, put
from tests.conftest import eventually
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


async def test_no_failure_ends_publishing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Outbox.take
    failures = [ZeroDivisionError(), StoreUnavailable("The store does not answer.")]

    async def failing(self: Outbox, *args: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(self, *args, **more)

    monkeypatch.setattr(publisher, "_RETRY_S", 0.02)
    monkeypatch.setattr(Outbox, "take", failing)
    async with stack.running():
        await stack.card(await stack.refund())

    assert caplog.text.count("publisher.failed_and_leads_again") == 1


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


@pytest.mark.parametrize("error", [SlackNoResponse("post", ""), ZeroDivisionError()])
async def test_a_message_that_cannot_be_sent_is_given_up_and_holds_nothing_up(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    async def failing(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(card_updater, "RETRY_FOR_S", 0.0)
    monkeypatch.setattr(queue_sender, "GIVE_UP_AFTER", 1)
    async with stack.running():
        with monkeypatch.context() as patch:
            patch.setattr(CardPublisher, "post", failing)
            await put(stack, EventName.RUN_FINISHED, text="x", channel="C0GENERAL")
            await nothing_is_left(stack)

    assert "publisher.gave_up" in caplog.text
