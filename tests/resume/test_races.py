"""Many hands at one thread: it goes on, and each call runs once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Decided, Stale
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.levels import size
from tests.resume import sample_tools
from tests.resume.resume_stack import EMAIL, Stack, open_stack
from tests.store_secrets import SECRETS


@pytest.fixture
async def second(stack: Stack, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give another process's view of the same stack."""
    store = Store(stack.store.conn.url, secrets=SECRETS, lease_ms=2000)
    async with open_stack(store, tmp_path / "checkpoints.db") as opened:
        yield opened
    await store.close()


@pytest.mark.slow
async def test_two_workers_with_the_last_two_items_never_lose_the_continuation(
    stack: Stack, second: Stack
) -> None:
    threads = [f"t{number}" for number in range(size(deep=40, short=10))]
    async with stack.working(), second.working():
        for thread in threads:
            await stack.ask(("refund", {"order": thread, "amount": 1.0}), EMAIL,
                            thread=thread)  # fmt: skip
        for thread in threads:
            items = await stack.asked(2, thread=thread)
            await asyncio.gather(*(stack.decide(item) for item in items))
        for thread in threads:
            words = await stack.words(thread=thread)
            assert words == f"refunded {thread} 1 | mailed ana@example.org"

    assert (
        len(sample_tools.ledger())
        == len(set(sample_tools.ledger()))
        == 2 * len(threads)
    )


@pytest.mark.slow
async def test_three_clicks_during_a_slow_tool_are_one_execution(
    stack: Stack, second: Stack
) -> None:
    async with stack.working(), second.working():
        await stack.ask(("slow", {"order": "1", "seconds": 2.0}))
        [slow] = await stack.asked()

        first = await stack.decide(slow)
        await eventually(_has_begun)
        again = [await stack.decide(slow) for _ in range(2)]
        for _ in range(3):  # and what a lost acknowledgement would bring back
            await stack.store.queue(stack.keys).put(_resume("t1"))

        assert await stack.words() == "slow 1"
        await stack.idle()

    assert isinstance(first, Decided)
    assert all(isinstance(outcome, Stale) for outcome in again)
    assert sample_tools.ledger() == ["begin 1", "end 1"]
    assert len(await stack.events(EventName.ITEM_EXECUTING)) == 1


@pytest.mark.slow
async def test_a_tool_that_outlives_every_lease_is_run_once(
    store: Store, tmp_path: Path
) -> None:
    # A busy machine stops a process for as long as a short lease.
    stacks = [Store(store.conn.url, secrets=SECRETS, lease_ms=3000) for _ in range(2)]
    place = tmp_path / "checkpoints.db"
    async with (
        open_stack(stacks[0], place) as stack,
        open_stack(stacks[1], place) as other,
        stack.working(),
        other.working(),
    ):
        await stack.ask(("slow", {"order": "1", "seconds": 3.5}))
        [slow] = await stack.asked()
        await stack.decide(slow)
        assert await stack.words() == "slow 1"
        await stack.idle()

        assert sample_tools.ledger() == ["begin 1", "end 1"]
        assert await stack.events(EventName.ITEM_IN_DOUBT) == []
    for one in stacks:
        await one.close()


def _resume(thread: str) -> Job:
    return Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread=thread)


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())
