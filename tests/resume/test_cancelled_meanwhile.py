"""A task that is cancelled while it stops a background task is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.store.runs.jobs import Delivery, Job, JobKind, JobQueue
from keyturn.gateway.store.store import Store
from tests.patience import WAIT_S

JOB = Job(kind=JobKind.START, tenant="default", agent="x", thread="t", input="hi")


class SlowTask:
    """A task that takes its time to stop."""

    def __init__(self) -> None:
        self.is_begun = threading.Event()
        self.is_stopping = threading.Event()
        self.may_end = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, *_given: object) -> None:
        """Wait for a cancellation, then for the release."""
        self._loop = asyncio.get_running_loop()
        try:
            self.is_begun.set()
            await asyncio.Event().wait()
        finally:
            self.is_stopping.set()
            await self.may_end.wait()

    def let_go(self) -> None:
        """End the task, possibly from another event loop."""
        assert self._loop
        self._loop.call_soon_threadsafe(self.may_end.set)


def job_held(store: Store) -> AbstractAsyncContextManager[object]:
    """Return the block in which a worker has a job."""
    queue = JobQueue(
        store.conn,
        store.keys_of_tenant("default"),
        store.sealing,
        lease_ms=3,
    )
    return queue.holding("test", Delivery(id="1-0", job=JOB))


def thread_awaited(store: Store) -> AbstractAsyncContextManager[object]:
    """Return the block in which a program waits for a thread."""
    return EventFeed(store, tenant="default").following(lambda _: False)


@pytest.mark.parametrize(
    ("kind", "name", "opened"),
    [(JobQueue, "_keep", job_held), (EventFeed, "_read", thread_awaited)],
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
            assert await asyncio.to_thread(slow.is_begun.wait, WAIT_S)

    working = asyncio.create_task(work())
    assert await asyncio.to_thread(slow.is_stopping.wait, WAIT_S)
    working.cancel()
    await asyncio.wait([working])
    slow.let_go()

    assert working.cancelled()
