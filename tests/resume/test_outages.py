"""Stops and outages: jobs are handed back, and a killed store loses no decision."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.store.engine import EmbeddedEngine
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack, open_stack
from tests.store_secrets import SECRETS

REFUND = ("refund", {"order": "78291", "amount": 899.0})


@pytest.mark.slow
async def test_a_stop_without_grace_hands_the_job_back_and_hides_no_doubt(
    stack: Stack,
) -> None:
    async with stack.working(grace_s=0.05):
        await stack.ask(("slow", {"order": "1", "seconds": 0.7}))
        [slow] = await stack.asked()
        await stack.idle()  # or the job that asked would take the decision along
        await stack.decide(slow)
        await eventually(_has_begun)

    assert await stack.store.queue(stack.keys).depth() == 1
    async with stack.working():
        await eventually(lambda: _is_in_doubt(stack))
        await stack.idle()
        [item] = await stack.items()
        await stack.decide(item, Reconcile(finding=Finding.EXECUTED))
        await stack.words()

    assert sample_tools.ledger() == ["begin 1", "end 1"]


@pytest.mark.slow
async def test_a_killed_store_loses_no_decision_and_the_worker_finds_it_again(
    tmp_path: Path,
) -> None:
    first, second = (EmbeddedEngine(tmp_path / "valkey") for _ in range(2))
    async with AsyncExitStack() as engines:
        await first.__aenter__()
        store = Store(first.url, secrets=SECRETS, lease_ms=1000)
        async with open_stack(store, tmp_path / "checkpoints.db") as stack:
            async with stack.working():
                await stack.ask(REFUND)
                [item] = await stack.asked()
            await stack.decide(item)
            assert first.pid
            os.kill(first.pid, signal.SIGKILL)
            await first.__aexit__(None, None, None)

            starting = asyncio.create_task(engines.enter_async_context(second))
            async with stack.working():  # no worker has started yet
                await starting
                assert await stack.words() == "refunded 78291 899"
                await stack.idle()
            assert await stack.states() == [ItemState.EXECUTED]
        await store.close()
    assert len(sample_tools.ledger()) == 1


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())


async def _is_in_doubt(stack: Stack) -> bool:
    return await stack.states() == [ItemState.IN_DOUBT]
