"""Finish what was begun, also when the one who waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# A loop itself keeps no task from being collected.
_running = set[asyncio.Task[Any]]()


def begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work in a task of its own; await it with `waited_for`."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_end)
    return task


async def waited_for(task: asyncio.Task[T]) -> T:
    """Return what a task comes to; it goes on when the caller is cancelled."""
    await asyncio.wait([task])
    return task.result()


def _end(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        # Read here, or asyncio would report the error of a task whose caller is gone.
        task.exception()
