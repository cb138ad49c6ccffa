"""People and operators read the truth about a store that takes no writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp
import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.service.report.process_check import NO_WRITES
from tests.bot.bot_stack import CHANNEL, Stack
from tests.conftest import eventually


@pytest.fixture
async def stack(stack: Stack) -> AsyncGenerator[Stack]:
    """Restore the store's memory after a test."""
    stack.store.processes.life_ms = 400
    yield stack
    await stack.store.conn.command("CONFIG SET", "maxmemory", "0")


async def test_clicks_and_readyz_report_a_full_store(stack: Stack) -> None:
    async with stack.running() as bot, aiohttp.ClientSession() as session:
        url = bot.url.replace("/slack/events", "/readyz")

        async def problems() -> list[str]:
            async with session.get(url) as answer:
                return list((await answer.json()).get("problems", []))

        async def is_told() -> bool:
            return await problems() == [NO_WRITES]

        async def is_ready() -> bool:
            return not await problems()

        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.store.conn.command("CONFIG SET", "maxmemory", "1")
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await stack.told("U0ANA", "nothing was recorded")
        await eventually(is_told)

        await stack.store.conn.command("CONFIG SET", "maxmemory", "0")

        await eventually(is_ready)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)
        assert not (await stack.item(verdict)).is_pending
