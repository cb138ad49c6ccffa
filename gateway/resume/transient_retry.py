"""Retry transient errors in place, where no job is queued to be retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from twokey.gateway.resume.diagnosis import diagnose

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0

T = TypeVar("T")


class InputNotGiven(Exception):
    """A thread could not be given its input, for a reason that can pass."""


class Backoff:
    """Backoff between attempts: longer and longer ones."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def next_s(self) -> float:
        """Return how long to wait now."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_PAUSE_S)
        return pause_s


async def retry_transient(work: Callable[[], Awaitable[T]]) -> T:
    """Do something as soon as the store, or what keeps the threads, is there."""
    backoff = Backoff()
    while True:
        try:
            return await work()
        except Exception as error:
            if not diagnose(error).can_pass:
                raise
            logger.warning("wait.goes_on error=%s", type(error).__name__)
        await asyncio.sleep(backoff.next_s())


async def drain_tasks(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> None:
    """Let tasks come to their end, then stop those that have not."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=grace_s)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)


async def wait_or_timeout(event: asyncio.Event, pause_s: float) -> None:
    """Wait for an event, no longer than ``pause_s``."""
    try:
        async with asyncio.timeout(pause_s):
            await event.wait()
    except TimeoutError:
        return
