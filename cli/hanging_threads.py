"""End a process even if a tool or a model client hangs in one of its threads.

Threads cannot be stopped from outside, and both asyncio and the interpreter wait for
all threads when they end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

THREADS_END_S = 2.0
"""How long threads may take to end after everything is closed."""


def serve(main: Coroutine[Any, Any, None]) -> None:
    """Run a service until it has closed everything.

    At SIGTERM, a service that is still starting closes what it has opened: its workers
    may already run tools. A second SIGTERM ends it immediately.
    """
    asyncio.run(_without_threads(main))


async def _without_threads(main: Coroutine[Any, Any, None]) -> None:
    starting = _Starting(asyncio.current_task())
    # Not an event loop handler: importing an agent may block the loop.
    before = signal.signal(signal.SIGTERM, starting.stop)
    try:
        await main
    except asyncio.CancelledError:
        if not starting.is_stopped:
            raise
    finally:
        leave_threads()
        if signal.getsignal(signal.SIGTERM) == starting.stop:
            signal.signal(signal.SIGTERM, before)


class _Starting:
    """A service that does not handle signals yet."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None  # noqa: S101 - it runs in one
        self._task, self._loop = task, task.get_loop()
        self.is_stopped = False

    def stop(self, _number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._task.cancel)


def leave_threads() -> None:
    """Stop waiting for the event loop's threads from here on.

    The new executor also works if tools hang in all threads of the old one.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def end_soon(code: int) -> None:
    """End this process with an exit code, even if a thread does not end.

    Everything is closed: later work of a thread would not be recorded anyway.
    """
    threading.Thread(target=_end, args=(code,), daemon=True).start()


def _end(code: int) -> None:
    time.sleep(THREADS_END_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
