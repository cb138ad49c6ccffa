"""The publisher lives through a lost lease, a failing store and a refused bot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.bot.bot_house import CHANNEL, TEAM, House, has_button
from tests.conftest import eventually
from tests.lifetimes import lose_records
from tests.service.harness import ANA
from twokey.bot.delivery import card_updater, event_dispatcher, feed, publisher
from twokey.bot.delivery.card_publisher import CardPublisher
from twokey.bot.delivery.card_updater import CardUpdater
from twokey.bot.delivery.event_dispatcher import EventDispatcher
from twokey.bot.delivery.outbox_queue import Topic
from twokey.bot.ids import Action
from twokey.bot.limits import Limits
from twokey.bot.web import Slack, SlackSilent
from twokey.gateway.approvals.decisions import Click, Reject
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.outbox import Outbox


async def test_who_lost_the_lease_asks_for_it_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with house.running():
            await house.card(await house.refund())
            lease = house.keys.lease("default", "", "slack:default")
            await house.store.conn.command("DEL", lease)

            async def leads_again() -> bool:
                return caplog.text.count("publisher.leading") == 2

            await eventually(leads_again)
            await house.card(await house.refund(thread="t2"))


async def test_a_store_that_fails_for_a_while_is_asked_again(
    house: House, monkeypatch: pytest.MonkeyPatch
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
    async with house.running():
        await house.card(await house.refund())


async def test_with_more_to_say_than_fits_reading_waits(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "ROOM", 1)
    verdicts = [await house.refund(thread=f"t{n}") for n in range(3)]

    async with house.running():
        for verdict in verdicts:
            await house.card(verdict)


async def test_a_bot_that_slack_refuses_goes_on_when_it_is_helped(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(card_updater, "BROKEN_S", 0.05)
    async with house.running():
        scopes = list(house.sandbox.workspace.bot_scopes)
        house.sandbox.control.scopes(["commands"])
        verdict = await house.refund()

        async def is_refused() -> bool:
            return "publisher.bot_refused error=missing_scope" in caplog.text

        await eventually(is_refused)
        house.sandbox.control.scopes(scopes)

        await house.card(verdict)


async def test_a_line_of_history_that_is_refused_is_dropped(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async with house.running():
        verdict = await house.refund()
        await house.card(verdict)
        approval = await house.approval(verdict)
        house.sandbox.faults.plan("rate_limit", "chat.postMessage", seconds=1)
        click = Click(
            approval=approval.id,
            index=0,
            version=approval.version,
            action_hash=approval.items[0].action_hash,
        )
        ana = ANA.with_(team=TEAM, usergroups=frozenset({"S0SUPPORT"}))
        await house.reviews.decide(click, Reject(reason="no"), ana)
        await house.card(verdict, lambda m: not has_button(m, Action.APPROVE))
        house.sandbox.control.archive(CHANNEL)

        async def is_dropped() -> bool:
            return "note.dropped" in caplog.text

        await eventually(is_dropped)


async def test_an_approval_that_is_gone_is_let_go(house: House) -> None:
    await house.refund()
    await lose_records(house.store.conn)
    outbox = house.store.outbox(house.keys, reader="slack:default")

    async with house.running():
        await house.card(await house.refund(thread="t2"))
    await outbox.prepare()
    assert await outbox.unfinished("test", idle_ms=0) == []


async def test_a_silent_slack_is_asked_more_and_more_rarely(house: House) -> None:
    async with card_publisher_of(house) as card_publisher:
        topic = Topic(key="ap", approval="ap", wanted=1)

        async def silent(_: str) -> None:
            raise SlackSilent("chat.update", "no answer")

        step = EventDispatcher(
            CardUpdater(
                card_publisher=card_publisher,
                tenant="default",
                read=silent,
                read_notice=silent,
                posted=ignored,
                clock=asyncio.get_running_loop().time,
            ),
            channel=str,
        ).step
        outbox = house.store.outbox(house.keys, reader="x")

        waits = [await step(topic, outbox, house.keys, None) for _ in range(8)]

    assert waits[:3] == [1.0, 2.0, 4.0]
    assert waits[-1] == 30.0


async def test_a_report_that_cannot_be_delivered_stops_nothing(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async with house.running():
        house.sandbox.control.deactivate("U0DAN")
        await house.submit(("lonely", {}))

        async def is_logged() -> bool:
            return "note.dropped" in caplog.text

        await eventually(is_logged)
        await house.card(await house.refund(thread="t2"))


async def test_without_anybody_to_tell_it_is_logged_alone(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async with house.running():
        await house.submit(("lonely", {}), requester=None)

        async def is_logged() -> bool:
            return "card.undeliverable" in caplog.text

        await eventually(is_logged)
        await house.card(await house.refund(thread="t2"))


def ignored(_: Approval) -> None:
    """Warm nothing."""


@asynccontextmanager
async def card_publisher_of(house: House) -> AsyncGenerator[CardPublisher]:
    """Give a card publisher of its own for a test of one step."""
    async with aiohttp.ClientSession() as session:
        yield CardPublisher(
            slack=Slack(
                house.sandbox.bot_token, api_url=house.sandbox.api_url, session=session
            ),
            limits=Limits(asyncio.get_running_loop().time),
            cards=house.store.cards,
            team=TEAM,
            seal_key=house.config.seal_key,
        )


async def test_a_failure_of_ours_is_tried_again_before_it_is_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = CardPublisher.post_card, 1

    async def failing(self: CardPublisher, *args: Any, **more: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ZeroDivisionError
        return await real(self, *args, **more)

    monkeypatch.setattr(event_dispatcher, "_LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(CardPublisher, "post_card", failing)
    async with house.running():
        await house.card(await house.refund())
