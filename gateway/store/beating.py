"""Send heartbeats while a block runs, also while its event loop is blocked.

They are sent from the background loop: code that blocks an event loop must not end the
leases of the process, nor those of calls that merely share it. What blocks the loop is
logged.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from keyturn.gateway import background_loop
from keyturn.gateway.clock import now_s

logger = logging.getLogger(__name__)

BLOCKED_S = 2.0
"""How late an event loop may answer before it counts as blocked."""

_FRAMES = 6
"""How many calls of a blocked loop's stack are logged, the innermost first."""


class _LoopWatch:
    """Notice on the background loop that an event loop is blocked, and log by what."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asked_s = 0.0
        self._is_logged = False

    def is_blocked(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the loop has not answered since an earlier look."""
        if not self._asked_s:
            self._asked_s = now_s()
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._answer)
            return False
        blocked_s = now_s() - self._asked_s
        if blocked_s < BLOCKED_S:
            return False
        if not self._is_logged:
            self._is_logged = True
            logger.warning(
                "loop.blocked seconds=%.0f by=%s", blocked_s, stack_of(self._thread)
            )
        return True

    def _answer(self) -> None:
        self._asked_s, self._is_logged = 0.0, False


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch] = WeakKeyDictionary()


def stack_of(thread: int) -> str:
    """Return what a thread runs, the innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way
    found = [*traceback.extract_stack(frame, _FRAMES)] if frame else []
    return " < ".join(
        f"{one.name} ({one.filename}:{one.lineno})" for one in reversed(found)
    )


class _Beats:
    def __init__(
        self,
        every_s: float,
        beat: Callable[[], Coroutine[Any, Any, None]],
        *,
        ends_blocked: bool,
    ) -> None:
        self._every_s, self._beat, self._ends_blocked = every_s, beat, ends_blocked
        self._loop = asyncio.get_running_loop()
        self._watch = _watches.setdefault(self._loop, _LoopWatch())
        # A heartbeat over HTTP names the lease of this context.
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        background_loop.call_later(every_s, self._send)

    async def stop(self) -> None:
        """Send no more; what is being sent has ended when this returns."""
        with self._lock:
            self._is_over = True
            sending = self._sending
        if sending is not None:
            await asyncio.wait(
                [asyncio.wrap_future(background_loop.spawn(_cancelled(sending)))]
            )

    def _send(self) -> None:
        is_blocked = self._watch.is_blocked(self._loop)
        with self._lock:
            if self._is_over:
                return
            if not (is_blocked and self._ends_blocked):
                loop = asyncio.get_running_loop()
                self._sending = loop.create_task(self._beat(), context=self._context)
                self._sending.add_done_callback(self._sent)
                return
        background_loop.call_later(self._every_s, self._send)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled():
            # Read, or asyncio would report it. It ends nothing: what is kept alive ends
            # by its own clock.
            sending.exception()
        with self._lock:
            self._sending = None
            if self._is_over:
                return
        background_loop.call_later(self._every_s, self._send)


async def _cancelled(sending: asyncio.Task[None]) -> None:
    sending.cancel()
    # Not `await sending`: its cancellation would look like that of the caller.
    await asyncio.wait([sending])


@asynccontextmanager
async def beating(
    every_s: float,
    beat: Callable[[], Coroutine[Any, Any, None]],
    *,
    ends_blocked: bool = False,
) -> AsyncGenerator[None]:
    """Send a heartbeat again and again while the block runs.

    Args:
        every_s: how long after the beginning, and after the end of the one before.
        beat: sends one, on the background loop.
        ends_blocked: send none while the event loop of the block is blocked, so that
            another process can take the work over.
    """
    beats = _Beats(every_s, beat, ends_blocked=ends_blocked)
    try:
        yield
    finally:
        await beats.stop()
