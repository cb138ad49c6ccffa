"""Send heartbeats while a block runs.

Most blocks end before their first heartbeat is due, so it is a timer that waits for it
and no task: a task takes a turn of the event loop when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


class _Beats:
    def __init__(
        self, every_s: float, beat: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._every_s = every_s
        self._beat = beat
        self._sending: asyncio.Task[None] | None = None
        self._is_over = False
        self._timer = self._in_time()

    async def stop(self) -> None:
        """Send no more; what is being sent has ended when this returns."""
        self._is_over = True
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            # Not `await self._sending`: a cancellation of the caller would look like
            # that of the heartbeat.
            await asyncio.wait([self._sending])

    def _in_time(self) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(self._every_s, self._send)

    def _send(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._beat())
        self._sending.add_done_callback(self._sent)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending = None
        if not sending.cancelled():
            # Read, or asyncio would report it. It ends nothing: what is kept alive ends
            # by its own clock.
            sending.exception()
        if not self._is_over:
            self._timer = self._in_time()


@asynccontextmanager
async def beating(
    every_s: float, beat: Callable[[], Coroutine[Any, Any, None]]
) -> AsyncGenerator[None]:
    """Send a heartbeat again and again while the block runs.

    Args:
        every_s: how long after the beginning, and after the end of the one before.
        beat: sends one.
    """
    beats = _Beats(every_s, beat)
    try:
        yield
    finally:
        await beats.stop()
