"""Merge what the parts of a tenant have, in one order."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

Row = TypeVar("Row")


async def all_of(asked: Sequence[Awaitable[Row]]) -> list[Row]:
    """Return what all of these return, waited for at the same time.

    Raises what one of them raises, once all of them have ended: none goes on behind
    the back of its caller, also of one that is cancelled.
    """
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


async def merged(
    streams: Sequence[AsyncGenerator[Row]], key: Callable[[Row], Any]
) -> AsyncGenerator[Row]:
    """Yield the rows of several streams, each of which is in order, in one order.

    Rows are read as they are asked for, so a caller that stops early has read at most
    one row of each stream too much. Rows with the same key come in the order of their
    streams, so that two looks show them alike.

    Args:
        streams: closed with this generator.
        key: by what they are in order.
    """
    async with AsyncExitStack() as opened:
        for one in streams:
            await opened.enter_async_context(aclosing(one))
        if len(streams) == 1:
            async for row in streams[0]:
                yield row
            return
        heap: list[tuple[Any, int, Row]] = []

        async def read(number: int) -> None:
            async for row in streams[number]:
                heapq.heappush(heap, (key(row), number, row))
                return

        # At once: each asks a server of its own, or one that takes several together.
        await all_of([read(number) for number in range(len(streams))])
        while heap:
            _, number, row = heapq.heappop(heap)
            yield row
            await read(number)
