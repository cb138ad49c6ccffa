"""The rare turns of the transports and of posting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.delivery import publisher
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.limits import Limits
from keyturn.bot.web import Slack
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.config import SlackMode
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, ME, Stack, says
from tests.conftest import eventually
from tests.loop_watch import watched
from tests.panics import failing


@asynccontextmanager
async def slack_of(sandbox: Sandbox) -> AsyncGenerator[Slack]:
    async with aiohttp.ClientSession() as session:
        yield Slack(sandbox.bot_token, api_url=sandbox.api_url, session=session)


def card_publisher_with(slack: Slack, stack: Stack) -> CardPublisher:
    return CardPublisher(
        slack,
        Limits(asyncio.get_running_loop().time),
        stack.store,
        stack.config,
        ME,
    )


async def test_a_surplus_copy_that_stays_is_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    approval = await stack.approval(await stack.refund())
    await stack.store.cards.posted(
        stack.keys, approval.id, channel=CHANNEL, ts="1.000001"
    )
    stack.sandbox.faults.plan("http_500", "chat.delete")

    async with slack_of(stack.sandbox) as slack:
        place = await card_publisher_with(slack, stack).post_card(
            approval, channel=CHANNEL, now_ms=0
        )

    assert place.ts == "1.000001"
    assert "card.surplus_stays" in caplog.text
    [message] = await stack.actor("U0ANA").messages(CHANNEL)
    assert "was replaced" in str(message)


async def test_a_note_that_we_cannot_show_says_so(stack: Stack) -> None:
    async with slack_of(stack.sandbox) as slack:
        broken = Message(blocks=({"type": "nonsense"},), text="a note")

        await card_publisher_with(slack, stack).post(CHANNEL, broken)

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

            async def is_answered() -> bool:
                return [sent.status for sent in stack.sandbox.requests] == [200]

            await eventually(is_answered)

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

        async def is_told() -> bool:
            return bool([n for n in await stack.notes(card) if says("approved")(n)])

        await eventually(is_told)


async def test_a_card_is_posted_without_walking_its_arguments_on_the_event_loop(
    live: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watched(monkeypatch)
    verdict = await live.refund(order={f"k{n}": n for n in range(4000)})
    await live.card(verdict)

    assert found == []
