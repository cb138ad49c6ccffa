"""Run work under a thread's lease, and cancel it when the lease is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from twokey.gateway.resume.held_work import while_held
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.store.fences import Lease
from twokey.gateway.store.store import Store

T = TypeVar("T")


async def under_lease(
    store: Store,
    at: ThreadRef,
    work: Callable[[], Awaitable[T]],
    *,
    taken: Lease | None = None,
) -> T:
    """Run ``work`` as the only one who runs this thread.

    Two processes that resume one thread at a time lose its continuation: both are
    told "ok", and the model is never called again. What ``work`` writes is fenced
    (`twokey.gateway.store.fences`): stopping it is not enough, since a process that was
    paused may be in the middle of a write when it goes on.

    Args:
        store: where the lease is.
        at: the thread.
        work: what is done under it.
        taken: the lease, if this process has it.

    Raises:
        ThreadUnavailable: when another process runs it.
        LeaseLost: when the lease was lost and the work was stopped. Nothing is lost:
            read the thread and go on later.
    """
    threads, name = store.threads, (at.agent, at.thread)

    async def named() -> T:
        threads.at_work.add(name)
        try:
            return await work()
        finally:
            threads.at_work.discard(name)

    if taken is not None:
        return await while_held(threads.leases.kept(at.keys, taken), named)
    lease = threads.lease(at.keys, at.tenant, at.agent, at.thread)
    return await while_held(lease, named)
