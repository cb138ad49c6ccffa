"""Heartbeats are sent while a block runs, also while its event loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import override

from keyturn.gateway.protocol.http_api import LeaseReply, LeaseVerb
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.remote.program import RemoteThreads
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs import leases as leases_module
from keyturn.gateway.store.runs.leases import beating
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.store.store import Store
from tests.patience import WAIT_S

RUN = RunRef(agent="x", thread="t")


class Count:
    """Counts heartbeats from any thread; ``enough`` is set at the third."""

    def __init__(self) -> None:
        self.beats = 0
        self.enough = threading.Event()

    async def beat(self) -> None:
        """Count one."""
        self.beats += 1
        if self.beats >= 3:
            self.enough.set()


def wait_blocking(happened: threading.Event) -> None:
    """Block the event loop until something happened."""
    assert happened.wait(WAIT_S)


class Threads(RemoteThreads):
    """A gateway over HTTP that gives and keeps leases."""

    def __init__(self, count: Count) -> None:
        super().__init__(cast("Any", SimpleNamespace(connection=None)))
        self._count = count

    @override
    async def lease_step(
        self, run: RunRef, verb: LeaseVerb, token: str, above: int = 0
    ) -> LeaseReply:
        """Answer any question, and count those that keep."""
        if verb == "keep":
            await self._count.beat()
        return LeaseReply(state="held", fence=1, name="x", lease_s=0.3)


def thread_held(
    store: Store, count: Count, patch: pytest.MonkeyPatch
) -> AbstractAsyncContextManager[Any]:
    """Return the block in which a process runs a thread."""
    leases = store.threads
    step = leases.lease_step

    async def counted(keys: Keys, name: str, verb: LeaseVerb, *given: Any) -> Any:
        reply = await step(keys, name, verb, *given)
        if verb == "keep":
            await count.beat()
        return reply

    patch.setattr(leases, "_lease_ms", 300)
    patch.setattr(leases, "lease_step", counted)
    return store.threads.lease(store.keys_of_tenant("default"), "x", "t")


@asynccontextmanager
async def job_held(
    store: Store, count: Count, patch: pytest.MonkeyPatch
) -> AsyncGenerator[Lease]:
    """Open the block in which a worker does a job, under the lease of its thread."""
    patch.setattr(store.threads, "_lease_ms", 300)
    async with store.threads.lease(store.keys_of_tenant("default"), "x", "t") as lease:
        lease.beats.append(count.beat)
        yield lease


def thread_held_over_http(
    _store: Store, count: Count, _patch: pytest.MonkeyPatch
) -> AbstractAsyncContextManager[Any]:
    """Return the block in which a program runs a thread over HTTP."""
    return Threads(count).lease(RUN)


@pytest.mark.parametrize("opened", [thread_held, job_held, thread_held_over_http])
async def test_what_a_process_holds_outlives_a_blocked_event_loop(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[Any, Any, Any], AbstractAsyncContextManager[Any]],
) -> None:
    count = Count()
    async with opened(store, count, monkeypatch) as held:
        wait_blocking(count.enough)
        assert held is None or held.left_s


@pytest.mark.parametrize("ends_blocked", [False, True])
async def test_what_blocks_the_event_loop_is_logged_and_may_end_the_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    ends_blocked: bool,
) -> None:
    count, looks, beats = Count(), 0, list[int]()
    has_looked = threading.Event()
    look = leases_module.LoopWatch.is_blocked

    def counted(watch: Any, loop: asyncio.AbstractEventLoop) -> bool:
        nonlocal looks
        looks += bool(caplog.records)
        if looks == 1:
            beats.append(count.beats)
        if looks > 3:
            has_looked.set()
        return look(watch, loop)

    # A slow start is not logged; the block below is.
    monkeypatch.setattr(leases_module, "BLOCKED_S", 3600.0)
    monkeypatch.setattr(leases_module.LoopWatch, "is_blocked", counted)
    with caplog.at_level(logging.WARNING, leases_module.__name__):
        async with beating(0.001, count.beat, ends_blocked=ends_blocked):
            monkeypatch.setattr(leases_module, "BLOCKED_S", 0.0)
            wait_blocking(has_looked)
            assert (count.beats == beats[0]) is ends_blocked

    # At no length of a block that counts, the machine may add others.
    message = caplog.records[0].getMessage()
    assert message.startswith("loop.blocked")
    assert f"({__file__}:" in message


async def test_heartbeats_go_on_after_one_that_failed() -> None:
    count = Count()

    async def beat() -> None:
        await count.beat()
        if count.beats == 1:
            raise RuntimeError("no")

    async with beating(0.001, beat):
        await asyncio.to_thread(wait_blocking, count.enough)
