"""Begin a reading before it is known to be needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def ahead(reading: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Give a reading that runs beside the block; what is not awaited in it is dropped.

    Each question to a store waits for the writes of others before it, so two that do
    not need each other go out together. An error counts where the reading is awaited,
    as if it had begun there.
    """
    task = asyncio.create_task(reading)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
