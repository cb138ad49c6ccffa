"""A late publisher is visible from outside, and ends by itself."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import pytest

from keyturn.bot.delivery import publisher
from keyturn.bot.delivery.publisher import Feed, Scheduler
from tests.bot.bot_stack import Stack
from tests.conftest import eventually


async def problems_of(url: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url.replace("/slack/events", "/readyz")) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.slow
async def test_a_message_that_nobody_sends_makes_the_bot_unready_until_it_is_sent(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "_WATCH_S", 0.02)
    stuck = asyncio.Event()
    real = Scheduler.run

    async def sleeping(self: Scheduler) -> None:
        if stuck.is_set():
            await real(self)
        await asyncio.Event().wait()

    monkeypatch.setattr(Scheduler, "run", sleeping)
    monkeypatch.setattr(publisher, "_CHECKS", 10**6)
    async with stack.running() as bot:
        verdict = await stack.refund()

        # A bot that has just started may be unready for other reasons before.
        async def is_unready() -> bool:
            stack.sandbox.control.advance(31)
            status, why = await problems_of(bot.url)
            return status == 503 and "nobody sends it" in why

        await eventually(is_unready)

        # The next look finds it too: the term ends, and the next one begins anew.
        stuck.set()
        monkeypatch.setattr(publisher, "_CHECKS", 1)
        with caplog.at_level(logging.ERROR):
            await stack.card(verdict)
        assert "publisher.stalled" in caplog.text
        assert (await problems_of(bot.url))[0] == 200


async def test_events_that_no_bot_reads_are_seen_by_every_bot_of_the_tenant(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(self: Feed) -> bool:
        del self
        return await asyncio.Event().wait()

    monkeypatch.setattr(Feed, "read_new", deaf)
    monkeypatch.setattr(publisher, "STALLED_S", 0.3)
    async with stack.running(), stack.running() as standing_by:
        await stack.refund()

        async def is_unready() -> bool:
            status, why = await problems_of(standing_by.url)
            return status == 503 and "No bot has read" in why

        await eventually(is_unready)
