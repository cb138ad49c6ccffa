"""People and operators read the truth about a store that takes no writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.service.report.process_check import NO_WRITES
from tests.bot.bot_stack import Stack
from tests.conftest import eventually


@pytest.fixture
async def stack(stack: Stack) -> AsyncGenerator[Stack]:
    """Restore the store's memory after a test."""
    stack.store.processes.life_ms = 400
    yield stack
    await stack.store.conn.command("CONFIG SET", "maxmemory", "0")


async def test_clicks_and_readyz_report_a_full_store(live: Stack) -> None:
    async def is_told() -> bool:
        return await live.problems() == [NO_WRITES]

    async def is_ready() -> bool:
        return not await live.problems()

    verdict = await live.refund()
    await live.card(verdict)
    await live.store.conn.command("CONFIG SET", "maxmemory", "1")
    await live.click(verdict, Action.APPROVE)
    await live.told("U0ANA", "nothing was recorded")
    await eventually(is_told)

    await live.store.conn.command("CONFIG SET", "maxmemory", "0")

    await eventually(is_ready)
    await live.click(verdict, Action.APPROVE)
    assert not (await live.item(verdict)).is_pending
