"""A task that is cancelled while it stops a background task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from twokey.gateway.resume.thread_watch import ThreadWatch
from twokey.gateway.store.jobs import Delivery, Job, JobKind, JobQueue
from twokey.gateway.store.store import Store

JOB = Job(kind=JobKind.START, tenant="default", agent="x", thread="t", input="hi")


class SlowTask:
    """A task that takes its time to stop."""

    def __init__(self) -> None:
        self.is_begun = asyncio.Event()
        self.is_stopping = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self, *_given: object) -> None:
        """Wait to be stopped, then to be let go."""
        try:
            self.is_begun.set()
            await asyncio.Event().wait()
        finally:
            self.is_stopping.set()
            await self.may_end.wait()


def job_held(store: Store) -> AbstractAsyncContextManager[object]:
    """Return the block in which a worker holds a job."""
    queue = JobQueue(
        store.conn,
        store.keys_of_tenant("default"),
        store.sealing,
        lease_ms=3,
    )
    return queue.holding("test", Delivery(id="1-0", job=JOB))


def thread_awaited(store: Store) -> AbstractAsyncContextManager[object]:
    """Return the block in which a program waits for a thread."""
    return ThreadWatch(store, store.keys_of_tenant("default")).of("x", "t")


@pytest.mark.parametrize(
    ("kind", "name", "opened"),
    [(JobQueue, "_keep", job_held), (ThreadWatch, "_read", thread_awaited)],
)
async def test_a_cancellation_during_the_end_of_a_block_is_not_swallowed(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[object],
    name: str,
    opened: Callable[[Store], AbstractAsyncContextManager[object]],
) -> None:
    slow = SlowTask()
    monkeypatch.setattr(kind, name, slow.run)

    async def work() -> None:
        async with opened(store):
            await slow.is_begun.wait()

    working = asyncio.create_task(work())
    await slow.is_stopping.wait()
    working.cancel()
    await asyncio.wait([working])
    slow.may_end.set()

    assert working.cancelled()
