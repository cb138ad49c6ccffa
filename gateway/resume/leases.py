"""Run work under a thread's lease, and cancel it when the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twokey.gateway.errors import LeaseLost
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.store.fences import holding
from twokey.gateway.store.store import Store

T = TypeVar("T")


async def under_lease(
    store: Store, at: ThreadRef, work: Callable[[], Awaitable[T]]
) -> T:
    """Run ``work`` as the only one who runs this thread.

    Two processes that resume one thread at a time lose its continuation: both are
    told "ok", and the model is never called again. What ``work`` writes is fenced
    (`twokey.gateway.store.fences`): stopping it is not enough, since a process that was
    paused may be in the middle of a write when it goes on.

    Raises:
        ThreadUnavailable: when another process runs it.
        LeaseLost: when the lease was lost and the work was stopped. Nothing is lost:
            read the thread and go on later.
    """
    async with store.threads.lease(at.keys, at.tenant, at.agent, at.thread) as lease:
        # A task keeps the context it was made in, so only the work is fenced, and not
        # what waits for it.
        with holding(lease):
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
