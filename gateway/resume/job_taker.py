"""Take jobs of decisions that are made in the process of a worker."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.handover import Handover, Taker
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.keys import Keys


def job_taker(
    may_take: Callable[[Keys, Job], bool],
    do: Callable[[Handover], Coroutine[Any, Any, None]],
    *,
    running: set[asyncio.Task[None]],
    slots: asyncio.Semaphore,
    consumer: str,
    lease_ms: int,
) -> Taker:
    """Return what takes jobs for a worker; the worker's event loop calls this.

    Args:
        may_take: whether the worker would begin this job now.
        do: waits for the answer to a handover, and does the job.
        running: what the worker waits for when it is stopped.
        slots: how many jobs it may do more. The last one is left to who reads jobs, and
            holds it while it waits.
        consumer: name of the worker among the readers of jobs.
        lease_ms: life of the lease of a thread.
    """
    # In the worker's context: who decides may be inside of anything.
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    def free(task: asyncio.Task[None]) -> None:
        running.discard(task)
        slots.release()

    async def take(
        keys: Keys, job: Job, known: Mapping[str, Approval]
    ) -> Handover | None:
        # Other event loops of the process share the store.
        if asyncio.get_running_loop() is not loop or slots.locked():
            return None
        if not may_take(keys, job):
            return None
        await slots.acquire()  # at once, since one is free
        handover = Handover(
            keys, job, consumer=consumer, lease_ms=lease_ms, known=known
        )
        # Begun before there is an answer: it has to wait for the next turn of the loop.
        task = loop.create_task(do(handover), context=context)
        running.add(task)
        task.add_done_callback(free)
        return handover

    return take
