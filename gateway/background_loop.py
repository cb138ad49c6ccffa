"""One event loop in a daemon thread, for work that a blocked event loop must not delay.

Tools block the event loop that they run on. Heartbeats are sent from this loop, so that
neither a claim nor a lease ends while its process works.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the background loop of this process."""
    return asyncio.run_coroutine_threadsafe(work, _background.loop())


def call_later(delay_s: float, callback: Callable[[], None]) -> None:
    """Call a function on the background loop of this process after a while.

    It cannot be taken back: what is no longer wanted does nothing when it is called.
    """
    loop = _background.loop()
    loop.call_soon_threadsafe(loop.call_later, delay_s, callback)


class _Background:
    """One event loop in one daemon thread; made again in a forked child."""

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
