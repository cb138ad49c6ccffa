"""Stops and outages: jobs are handed back, and a killed store loses no decision."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import House, open_house
from twokey.gateway.approvals.decisions import Reconcile
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.store.engine import EmbeddedEngine
from twokey.gateway.store.store import Store

REFUND = ("refund", {"order": "78291", "amount": 899.0})


async def test_a_stop_without_grace_hands_the_job_back_and_hides_no_doubt(
    house: House,
) -> None:
    async with house.working(grace_s=0.05):
        await house.ask(("slow", {"order": "1", "seconds": 0.7}))
        [slow] = await house.asked()
        await house.idle()  # or the job that asked would take the decision along
        await house.decide(slow)
        await eventually(_has_begun)

    assert await house.store.queue(house.keys).depth() == 1
    async with house.working():
        await eventually(lambda: _is_in_doubt(house))
        await house.idle()
        [item] = await house.items()
        await house.decide(item, Reconcile(finding=Finding.EXECUTED))
        await house.words()

    assert sample_tools.ledger() == ["begin 1", "end 1"]


@pytest.mark.slow
async def test_a_killed_store_loses_no_decision_and_the_worker_finds_it_again(
    tmp_path: Path,
) -> None:
    first, second = (EmbeddedEngine(tmp_path / "valkey") for _ in range(2))
    async with AsyncExitStack() as engines:
        await first.__aenter__()
        store = Store(first.url, lease_ms=1000)
        async with open_house(store, tmp_path / "checkpoints.db") as house:
            async with house.working():
                await house.ask(REFUND)
                [item] = await house.asked()
            await house.decide(item)
            assert first.pid
            os.kill(first.pid, signal.SIGKILL)
            await first.__aexit__(None, None, None)

            starting = asyncio.create_task(engines.enter_async_context(second))
            async with house.working():  # nobody is there yet
                await starting
                assert await house.words() == "refunded 78291 899"
                await house.idle()
            assert await house.states() == [ItemState.EXECUTED]
        await store.close()
    assert len(sample_tools.ledger()) == 1


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())


async def _is_in_doubt(house: House) -> bool:
    return await house.states() == [ItemState.IN_DOUBT]
