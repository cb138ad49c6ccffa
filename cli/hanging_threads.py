"""End a process although a tool, or the client of a model, hangs in one of its threads.

Nothing stops a thread from outside, and both asyncio and the interpreter wait for all
threads when they end.
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
"""How long the threads of a process that has closed everything may take to end."""


def serve(main: Coroutine[Any, Any, None]) -> None:
    """Run a service until it has closed everything.

    At SIGTERM it also closes what it has begun while it is still starting: its workers
    may run tools then. The second SIGTERM ends it at once.
    """
    asyncio.run(_without_threads(main))


async def _without_threads(main: Coroutine[Any, Any, None]) -> None:
    starting = _Starting(asyncio.current_task())
    # Not by the loop, which may be held up by the import of an agent.
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
    """Let nothing from here on wait for what runs in the event loop's threads.

    Also not for one of them: tools may hang in all.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def end_soon(code: int) -> None:
    """End this process with an exit code, also if a thread does not end.

    Everything is closed: what a thread still does, nobody would record.
    """
    threading.Thread(target=_end, args=(code,), daemon=True).start()


def _end(code: int) -> None:
    time.sleep(THREADS_END_S)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
