"""Take jobs that are handed over and do nothing with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import pytest

from tests.resume.resume_stack import Stack
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.store.connection import Reply, number
from twokey.gateway.store.given_jobs import given
from twokey.gateway.store.handover import Handover
from twokey.gateway.store.jobs import GROUP, Delivery, Job, JobQueue
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.leases import LeaseStore

FOREVER_MS = 3_600_000
"""A lease that no test waits for: what is only found after its end is not found."""
REFUND = ("refund", {"order": "1", "amount": 5.0})
CONSUMER = "the-worker"


async def asked(stack: Stack, thread: str = "t1") -> Item:
    """Let the agent ask for a refund, without a worker afterwards."""
    async with stack.working():
        await stack.ask(REFUND, thread=thread)
        [item] = await stack.asked(thread=thread)
        await stack.idle()
    return item


class OneTaker:
    """Takes any job, and does nothing with it."""

    def __init__(self, *, lease_ms: int = FOREVER_MS) -> None:
        self.offered: list[Handover] = []
        self._lease_ms = lease_ms

    async def take(
        self, keys: Keys, job: Job, known: Mapping[str, Approval]
    ) -> Handover | None:
        """See `Taker`."""
        one = Handover(
            keys, job, consumer=CONSUMER, lease_ms=self._lease_ms, known=known
        )
        self.offered.append(one)
        return one

    @asynccontextmanager
    async def offering(self, stack: Stack) -> AsyncGenerator[None]:
        """Be offered jobs of a stack with a group of readers."""
        await stack.store.queue(stack.keys).prepare()
        with stack.store.approvals.takers.offering(self.take):
            yield

    async def given(self, stack: Stack) -> Delivery | None:
        """Return what came of the only offer."""
        [one] = self.offered
        return await given(stack.store, one)


async def undelivered(stack: Stack) -> int:
    """Return how many jobs wait in the stream that nobody was given."""
    entries = await stack.store.conn.command("XLEN", stack.keys.jobs)
    pending = await stack.store.conn.command("XPENDING", stack.keys.jobs, GROUP)
    assert isinstance(entries, int)
    return entries - number(cast("dict[str, Reply]", pending)["pending"])


def taken_by_workers(patch: pytest.MonkeyPatch) -> list[object]:
    """Return what workers take by themselves from now on: jobs, and names of leases."""
    taken: list[object] = []
    take_job, take_lease = JobQueue.take, LeaseStore.take

    async def noted_job(
        self: JobQueue, consumer: str, *, block_ms: int
    ) -> Delivery | None:
        found = await take_job(self, consumer, block_ms=block_ms)
        if found is not None:
            taken.append(found)
        return found

    async def noted_lease(self: LeaseStore, keys: Keys, name: str) -> object:
        taken.append(name)
        return await take_lease(self, keys, name)

    patch.setattr(JobQueue, "take", noted_job)
    patch.setattr(LeaseStore, "take", noted_lease)
    return taken
