"""A decision is carried out by a gateway that knows its thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack, open_stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})


@pytest.mark.slow
async def test_an_approved_call_waits_for_the_gateway_that_knows_its_thread(
    store: Store, stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def has_left_it() -> bool:
        return "thread.not_run_here" in caplog.text

    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    async with open_stack(store, tmp_path / "other.db") as other:
        await stack.decide(item)
        async with other.working():
            await eventually(has_left_it)
        assert await store.queue(stack.keys).depth() == 1

    async with stack.working():
        assert await stack.words() == "refunded 78291 899"
        await stack.idle()
    assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_a_job_of_a_thread_without_approved_calls_does_not_wait(
    store: Store, stack: Stack, tmp_path: Path
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    await stack.decide(item, Reject(reason="no"))

    async with open_stack(store, tmp_path / "other.db") as other, other.working():
        await other.idle()
