"""Do work while a lease is held, and cancel it when the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from twokey.gateway.errors import LeaseLost
from twokey.gateway.protocol import run_context
from twokey.gateway.store.fences import Lease, holding

T = TypeVar("T")


async def while_held(
    lease_of: AbstractAsyncContextManager[Lease], work: Callable[[], Awaitable[T]]
) -> T:
    """Take a lease and run ``work`` under it.

    Raises:
        LeaseLost: when the lease was lost and the work was stopped.
    """
    async with lease_of as lease:
        # A task keeps the context it was made in, so only the work is fenced, and not
        # what waits for it.
        with holding(lease), run_context.lasting(lambda: lease.left_s):
            running = asyncio.ensure_future(work())
        watching = asyncio.create_task(lease.lost.wait())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            # Also when the lease was lost at the same moment: what the work wrote was
            # fenced.
            if running.done():
                return running.result()
            raise LeaseLost
        finally:
            watching.cancel()
            running.cancel()
            # The lease is given back after this block; nothing may run under it then.
            await asyncio.gather(running, watching, return_exceptions=True)
