"""A job is in one place at a time, however many processes move it."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.store.runs import jobs
from keyturn.gateway.store.runs.jobs import (
    Delivery,
    Job,
    JobKind,
    JobQueue,
    input_of,
    sealed_job,
)
from keyturn.gateway.store.sealing.encryption import MARK
from keyturn.gateway.store.store import Store

JOB = Job(kind=JobKind.START, tenant="default", agent="x", thread="t", input="hi")
RESUME = Job.to_resume("default", "x", "t")


@pytest.fixture
async def queue(store: Store) -> JobQueue:
    """Return an empty queue whose jobs are not taken over, even on a slow machine."""
    keys = store.keys_of_tenant("default")
    queue = JobQueue(store.conn, keys, store.sealing, lease_ms=60_000)
    await queue.prepare()
    return queue


async def taken(queue: JobQueue) -> list[Delivery]:
    """Take every job that is to be done now."""
    found: list[Delivery] = []
    while (one := await queue.take("test", block_ms=1)) is not None:
        found.append(one)
    return found


@pytest.mark.parametrize("encrypts", [False, True])
@pytest.mark.parametrize("given", ["hi", "", f"{MARK.decode()}hi", "é ✓"])
async def test_a_thread_is_started_with_what_was_written(
    store: Store, given: str, *, encrypts: bool
) -> None:
    """Also where that begins like an encrypted text."""
    store.conn.encrypts = encrypts
    job = sealed_job(store.sealing, JOB.with_(input=given))

    store.conn.encrypts = not encrypts
    assert input_of(store.sealing, job) == given


async def test_a_job_is_not_put_back_by_two_who_had_it(queue: JobQueue) -> None:
    await queue.put(RESUME)
    [delivery] = await taken(queue)
    other = Delivery(delivery.id, RESUME.with_(id="other"))

    await asyncio.gather(
        queue.later(delivery, delay_ms=-1), queue.later(other, delay_ms=-1)
    )

    assert await queue.depth() == 1


async def test_a_job_that_was_done_is_not_put_back(queue: JobQueue) -> None:
    await queue.put(RESUME)
    [delivery] = await taken(queue)
    await queue.done(delivery)

    await queue.later(delivery, delay_ms=0)

    assert await queue.depth() == 0


async def test_a_worker_with_much_to_do_still_takes_over_abandoned_jobs(
    store: Store, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1_000.0
    monkeypatch.setattr(jobs, "monotonic", lambda: clock)
    for number in range(4):
        await queue.put(RESUME.with_(id=f"id{number}"))
    first = await queue.take("dead", block_ms=1)
    assert first is not None
    keys = store.keys_of_tenant("default")
    await store.conn.command(
        "XCLAIM", keys.jobs, "workers", "dead", 0, first.id, "IDLE", 61_000
    )

    second = await queue.take("test", block_ms=1)
    clock += 60 / 60
    third = await queue.take("test", block_ms=1)

    found = [one.job.id for one in (second, third) if one]
    assert found == ["id1", "id0"]


async def test_a_renewed_job_is_not_taken_over(store: Store, queue: JobQueue) -> None:
    await queue.put(RESUME)
    [delivery] = await taken(queue)
    keys = store.keys_of_tenant("default")
    await store.conn.command(
        "XCLAIM", keys.jobs, "workers", "test", 0, delivery.id, "IDLE", 61_000
    )

    await queue.renew("test", delivery)

    another = JobQueue(store.conn, keys, store.sealing, lease_ms=60_000)
    assert await another.take("another", block_ms=1) is None
