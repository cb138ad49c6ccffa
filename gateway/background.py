"""Work that continues although its caller is blocked, cancelled or forked.

Tools block their event loop. Heartbeats are sent from one event loop in a daemon
thread, so that neither a claim nor a lease ends while its process works.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

GRACE_S = 25.0
"""Time that running threads and steps have when their process stops."""

T = TypeVar("T")

# An event loop has only weak references to its tasks; this keeps them alive.
_running = set[asyncio.Task[Any]]()


def spawn(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the background loop of this process."""
    return asyncio.run_coroutine_threadsafe(work, _background.loop())


class _Background:
    """One event loop in one daemon thread; created again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # Threads do not survive a fork: in the child the loop's thread is missing.
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                # A daemon: a heartbeat must not keep the program from ending.
                threading.Thread(
                    target=self._loop.run_forever,
                    name="keyturn-background",
                    daemon=True,
                ).start()
            return self._loop


_background = _Background()


def begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work in a separate task; await it with `waited_for`."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_end)
    return task


async def waited_for(task: asyncio.Task[T]) -> T:
    """Return a task's result; the task continues if the caller is cancelled."""
    await asyncio.wait([task])
    return task.result()


def _end(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        # Read here, or asyncio would report the error of a task without a waiting
        # caller.
        task.exception()
