"""A job is in one place at a time, however many processes move it."""

from __future__ import annotations

import asyncio

import pytest

from twokey.gateway.store.jobs import Delivery, Job, JobKind, JobQueue
from twokey.gateway.store.store import Store

JOB = Job(kind=JobKind.START, tenant="default", agent="x", thread="t", input="hi")


@pytest.fixture
async def queue(store: Store) -> JobQueue:
    """Give an empty queue; however slow the machine is, nobody takes a job over."""
    keys = store.keys_of_tenant("default")
    queue = JobQueue(store.conn, keys, lease_ms=60_000)
    await queue.prepare()
    return queue


async def taken(queue: JobQueue) -> list[Delivery]:
    """Take every job that is to be done now."""
    found: list[Delivery] = []
    while (one := await queue.take("test", block_ms=1)) is not None:
        found.append(one)
    return found


@pytest.mark.slow
async def test_sweepers_that_coincide_put_each_job_back_once(queue: JobQueue) -> None:
    jobs = [JOB.with_(id=f"id{number}") for number in range(50)]
    for job in jobs:
        await queue.put(job)
    for delivery in await taken(queue):
        await queue.later(delivery, delay_ms=-1)

    moved = await asyncio.gather(*(queue.requeue_due() for _ in range(8)))

    assert sum(moved) == len(jobs)
    assert sorted(one.job.id for one in await taken(queue)) == sorted(
        job.id for job in jobs
    )


async def test_a_job_is_not_put_back_by_two_who_had_it(queue: JobQueue) -> None:
    await queue.put(JOB)
    [delivery] = await taken(queue)
    resumed = Delivery(delivery.id, JOB.with_(kind=JobKind.RESUME, input=""))

    await asyncio.gather(
        queue.later(delivery, delay_ms=-1), queue.later(resumed, delay_ms=-1)
    )

    assert await queue.depth() == 1


async def test_a_job_that_was_done_is_not_put_back(queue: JobQueue) -> None:
    await queue.put(JOB)
    [delivery] = await taken(queue)
    await queue.done(delivery)

    await queue.later(delivery, delay_ms=0)

    assert await queue.depth() == 0
