"""A run's open approvals are listed apart, and keep the facts of its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import number
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs import jobs
from keyturn.gateway.store.runs.jobs import (
    Delivery,
    Job,
    JobKind,
    JobQueue,
    input_of,
    sealed_job,
)
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.sealing.encryption import MARK
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness

RUN = RunRef(agent="support", thread="t1")
CALL: tuple[str, JsonObject] = ("process_refund", {"amount": 5})
NO_END = -1


@pytest.fixture
def keys(harness: ServiceHarness) -> Keys:
    return harness.keys


async def opened(harness: ServiceHarness, ns: str) -> str:
    _, (verdict,) = await harness.submit(CALL, ns=ns)
    return verdict.item_id.rpartition(".")[0]


async def still_open(harness: ServiceHarness, keys: Keys) -> list[tuple[str, str]]:
    found = await harness.store.approvals.open_of_run(keys, RUN)
    return [(one.id, one.ns) for one in found]


async def reject(harness: ServiceHarness, approval: str) -> None:
    await harness.decide(f"{approval}.0", Reject(reason="no"))


async def life(harness: ServiceHarness, keys: Keys) -> int:
    facts = keys.thread_facts(RUN.agent, RUN.thread)
    return number(await harness.command("PTTL", facts))


async def test_it_is_listed_in_order(harness: ServiceHarness, keys: Keys) -> None:
    names = ["tools:1", "tools:1|é", "tools:12"]
    # The outermost agent's turn would supersede the approvals inside it.
    rows = [(await opened(harness, ns), ns) for ns in names]
    assert await still_open(harness, keys) == rows

    await reject(harness, rows[1][0])
    assert await still_open(harness, keys) == [rows[0], rows[2]]
    listed = await harness.store.approvals.of_run(keys, RUN)
    assert [(one.id, one.ns) for one in listed] == rows

    await opened(harness, "")
    for approval, _ in rows[::2]:
        assert (await harness.item(f"{approval}.0")).state == "superseded"


async def test_open_calls_keep_the_facts(harness: ServiceHarness, keys: Keys) -> None:
    approval = await opened(harness, "")
    threads = harness.store.threads
    assert await life(harness, keys) == NO_END

    await threads.end_run(keys, RUN.agent, RUN.thread)
    await threads.change(keys, RUN.agent, RUN.thread, lambda facts: facts, why="aside")
    assert await life(harness, keys) == NO_END
    await reject(harness, approval)

    assert await life(harness, keys) > 0
    assert not await harness.store.approvals.has_open(keys, RUN)


async def test_facts_live_once_asked_for(harness: ServiceHarness, keys: Keys) -> None:
    threads = harness.store.threads
    place = keys, RUN.agent, RUN.thread
    await threads.open_run(*place, has_past=False)
    await threads.end_run(*place)
    assert await life(harness, keys) > 0
    asked = Job(
        kind=JobKind.START,
        tenant="default",
        agent=RUN.agent,
        thread=RUN.thread,
        input="hi",
    )

    await threads.ask(keys, asked, "m1", lambda facts: facts.asked_by(ANA.person))

    # However long it takes until a process runs it.
    assert await life(harness, keys) == NO_END


async def test_concurrent_people_are_kept(harness: ServiceHarness, keys: Keys) -> None:
    threads = harness.store.threads

    def joined(number: int) -> Callable[[ThreadFacts], ThreadFacts]:
        person = ANA.person.with_(user=f"U0P{number}")
        return lambda facts: facts.joined([person])

    await asyncio.gather(
        *(
            threads.change(keys, RUN.agent, RUN.thread, joined(number), why="aside")
            for number in range(5)
        )
    )

    found = await threads.facts(keys, RUN.agent, RUN.thread)
    assert {one.user for one in found.principals} == {f"U0P{n}" for n in range(5)}


async def test_open_calls_name_nobody(harness: ServiceHarness, keys: Keys) -> None:
    approval = await opened(harness, "")
    facts = keys.thread_facts(RUN.agent, RUN.thread)
    await harness.command("HDEL", facts, "facts")
    threads = harness.store.threads

    await threads.change(keys, RUN.agent, RUN.thread, lambda one: one, why="begin")
    await threads.open_run(keys, RUN.agent, RUN.thread, has_past=True)

    found = await threads.facts(keys, RUN.agent, RUN.thread)
    assert found.is_partial
    await threads.end_run(keys, RUN.agent, RUN.thread)
    await reject(harness, approval)


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
    while (one := await queue.take(block_ms=1)) is not None:
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
    for place in range(4):
        await queue.put(RESUME.with_(id=f"id{place}"))
    first = await queue.take(block_ms=1)
    assert first is not None
    keys = store.keys_of_tenant("default")
    await store.conn.command(
        "XCLAIM", keys.jobs, "workers", "dead", 0, first.id, "IDLE", 61_000
    )

    second = await queue.take(block_ms=1)
    clock += 60 / 60
    third = await queue.take(block_ms=1)

    found = [one.job.id for one in (second, third) if one]
    assert found == ["id1", "id0"]


async def test_a_renewed_job_is_not_taken_over(store: Store, queue: JobQueue) -> None:
    await queue.put(RESUME)
    [delivery] = await taken(queue)
    keys = store.keys_of_tenant("default")
    await store.conn.command(
        "XCLAIM", keys.jobs, "workers", "test", 0, delivery.id, "IDLE", 61_000
    )

    await queue.renew(delivery)

    another = JobQueue(store.conn, keys, store.sealing, lease_ms=60_000)
    assert await another.take(block_ms=1) is None
