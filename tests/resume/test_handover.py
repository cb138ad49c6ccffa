"""A decision hands the thread to the worker of its process, and to no other."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping

import pytest

from tests.resume.handed import (
    CONSUMER,
    FOREVER_MS,
    REFUND,
    OneTaker,
    asked,
    taken_by_workers,
    undelivered,
)
from tests.resume.resume_stack import Stack
from twokey.gateway.approvals.decisions import Decided
from twokey.gateway.errors import LeaseLost, ThreadUnavailable
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.job_taker import job_taker
from twokey.gateway.resume.retries import Retries
from twokey.gateway.resume.runners import Runners
from twokey.gateway.resume.worker import Worker
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.fences import holding
from twokey.gateway.store.given_jobs import given
from twokey.gateway.store.handover import Handover
from twokey.gateway.store.jobs import GROUP, Job
from twokey.gateway.store.keys import Keys


@pytest.fixture
def forever(stack: Stack) -> None:
    """Let leases and deliveries of this store not end."""
    stack.store.lease_ms = FOREVER_MS


@pytest.mark.usefixtures("forever")
async def test_a_worker_begins_with_the_answer_to_a_decision_of_its_process(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        taken = taken_by_workers(monkeypatch)

        assert isinstance(await stack.decide(item), Decided)
        await stack.words()
        await stack.idle()

        assert taken == []
    assert await stack.states() == [ItemState.EXECUTED]


async def test_a_thread_that_another_process_runs_is_not_handed_over(
    stack: Stack,
) -> None:
    item = await asked(stack)
    taker, place = OneTaker(), ("default", "shop", "t1")
    async with (
        stack.store.threads.lease(stack.keys, *place) as lease,
        taker.offering(stack),
    ):
        assert isinstance(await stack.decide(item), Decided)

        assert await taker.given(stack) is None
        assert await undelivered(stack) == 1
        kept = await stack.store.conn.command("HGET", lease.key, "token")
        assert kept == lease.token.encode()
    async with stack.working():
        await stack.words()


async def test_a_run_that_was_dropped_is_not_handed_over(stack: Stack) -> None:
    item = await asked(stack)
    run = stack.keys.stalled_run("default", "shop", "t1")
    await stack.store.conn.command("SET", stack.keys.dropped(run), "1", "PX", 60_000)
    taker = OneTaker()
    async with taker.offering(stack):
        await stack.decide(item)

        assert await taker.given(stack) is None
    assert await undelivered(stack) == 1


async def test_a_run_whose_past_nobody_looked_at_is_not_handed_over(
    stack: Stack,
) -> None:
    """Its facts were lost: who goes on with it has to find that out."""
    item = await asked(stack)
    facts = stack.keys.thread_facts("default", "shop", "t1")
    await stack.store.conn.command("HDEL", facts, "run")
    taker = OneTaker()
    async with taker.offering(stack):
        await stack.decide(item)

        assert await taker.given(stack) is None


async def test_a_fence_that_cannot_rise_is_handed_over_to_nobody(stack: Stack) -> None:
    item = await asked(stack)
    await stack.store.conn.command("SET", stack.keys.fences, str(2**53 - 1))
    taker = OneTaker()
    async with taker.offering(stack):
        assert isinstance(await stack.decide(item), Decided)

        assert await taker.given(stack) is None


async def test_a_decision_inside_of_a_run_is_offered_to_nobody(stack: Stack) -> None:
    item = await asked(stack)
    taker = OneTaker()
    async with (
        taker.offering(stack),
        stack.store.threads.lease(stack.keys, "default", "shop", "other") as lease,
    ):
        with holding(lease):
            await stack.decide(item)

    assert not taker.offered


async def test_of_a_card_with_several_calls_that_is_remembered_nothing_is_known(
    stack: Stack,
) -> None:
    """A master that took over may have lost what was decided of the others."""
    async with stack.working():
        await stack.ask(REFUND, ("refund", {"order": "2", "amount": 5.0}))
        first, second = await stack.asked(2)
        await stack.idle()
    taker = OneTaker()
    async with taker.offering(stack):
        # From a reading, then as it was shown.
        await stack.decide(first)
        await stack.reviews.read_as_of_now(first.id.rpartition(".")[0])
        await stack.decide(second)

    assert [len(one.known) for one in taker.offered] == [1, 0]


async def test_jobs_that_wait_come_first(stack: Stack) -> None:
    item = await asked(stack)
    taker, queue = OneTaker(), stack.store.queue(stack.keys)
    async with taker.offering(stack):
        await queue.put(Job.to_resume("default", "shop", "earlier"))

        await stack.decide(item)

        assert await taker.given(stack) is None
    assert await undelivered(stack) == 2
    first = await queue.take(CONSUMER, block_ms=1)
    assert first is not None
    assert first.job.thread == "earlier"


async def test_without_a_group_of_readers_a_job_waits_for_them(stack: Stack) -> None:
    item = await asked(stack)
    taker = OneTaker()
    async with taker.offering(stack):
        await stack.store.conn.command("XGROUP", "DESTROY", stack.keys.jobs, GROUP)

        assert isinstance(await stack.decide(item), Decided)

        assert await taker.given(stack) is None
    async with stack.working():
        await stack.words()


async def test_of_two_decisions_of_one_thread_one_gets_the_lease(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND, ("refund", {"order": "2", "amount": 5.0}))
        items = await stack.asked(2)
        await stack.idle()
    taker = OneTaker()
    async with taker.offering(stack):
        await asyncio.gather(*map(stack.decide, items))

        found = [await given(stack.store, one) for one in taker.offered]
    assert len([one for one in found if one is not None]) == 1
    with pytest.raises(ThreadUnavailable):
        async with stack.store.threads.lease(stack.keys, "default", "shop", "t1"):
            pass


async def test_what_was_handed_over_has_a_fence_between_those_before_and_after(
    stack: Stack,
) -> None:
    """A process that is paused with it writes nothing after the next holder came."""
    item = await asked(stack)
    taker, place = OneTaker(), ("default", "shop", "t1")
    threads = stack.store.threads
    async with threads.lease(stack.keys, *place) as before:
        pass
    async with taker.offering(stack):
        await stack.decide(item)
        found = await taker.given(stack)
    assert found is not None
    assert found.given is not None
    given = found.given.lease
    # It ended while its holder was paused.
    await stack.store.conn.command("DEL", given.key)
    async with threads.lease(stack.keys, *place) as after:
        assert before.fence < given.fence < after.fence
        with holding(given), pytest.raises(LeaseLost):
            await threads.announce(
                stack.keys, *place, what="ended", mark="m", outbox_event="{}",
                audit_event="{}",
            )  # fmt: skip


async def test_a_job_of_a_worker_that_died_with_it_is_done_by_another(
    stack: Stack,
) -> None:
    item = await asked(stack)
    stack.store.lease_ms = 300
    taker = OneTaker(lease_ms=300)
    async with taker.offering(stack):
        await stack.decide(item)
        assert await taker.given(stack) is not None

    async with stack.working():
        await stack.words()
        await stack.idle()
    assert await stack.states() == [ItemState.EXECUTED]


async def test_a_worker_that_stops_takes_nothing_more(stack: Stack) -> None:
    """It may take a while, in which other threads come to their end."""
    item = await asked(stack)
    stop, is_stopped = asyncio.Event(), asyncio.Event()
    worker = Worker(
        stack.store,
        AgentService(stack.store, lambda: stack.policy),
        Runners(stack.runners),
        Retries(stack.store),
        lambda: stack.policy,
        consumer=CONSUMER,
    )

    async def read(_keys: Keys, _stop: asyncio.Event) -> None:
        await is_stopped.wait()

    worker._read = read  # type: ignore[method-assign, assignment]  # pyright: ignore[reportPrivateUsage] - as one that reads for a while yet
    working = asyncio.create_task(worker.run(stop))
    await stack.store.queue(stack.keys).prepare()
    stop.set()

    await stack.decide(item)

    assert await undelivered(stack) == 1
    is_stopped.set()
    await working


@pytest.mark.parametrize("is_here", [False, True])
async def test_a_worker_takes_jobs_for_its_own_event_loop_only(
    stack: Stack, *, is_here: bool
) -> None:
    running = set[asyncio.Task[None]]()

    async def done(_handover: Handover) -> None:
        return

    def may_take(_keys: Keys, _job: Job) -> bool:
        return True

    take = job_taker(
        may_take,
        done,
        running=running,
        slots=asyncio.Semaphore(1),
        consumer=CONSUMER,
        lease_ms=1000,
    )

    async def offer() -> Handover | None:
        return await take(stack.keys, Job.to_resume("default", "shop", "t1"), {})

    found = await (
        offer() if is_here else asyncio.to_thread(lambda: asyncio.run(offer()))
    )

    assert (found is not None) is is_here
    # The only slot is taken until the job is done.
    assert not is_here or await offer() is None
    await asyncio.gather(*running)
    assert not is_here or await offer() is not None


inside = contextvars.ContextVar("inside", default=False)


async def test_a_handed_job_is_not_done_in_the_context_of_who_decides(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume, seen = stack.runner.resume, list[bool]()

    async def noted(thread: str, answers: Mapping[str, object], *, key: str) -> None:
        seen.append(inside.get())
        await resume(thread, answers, key=key)  # type: ignore[arg-type]  # as they came

    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        monkeypatch.setattr(stack.runner, "resume", noted)
        inside.set(True)
        await stack.decide(item)
        await stack.words()

    assert seen == [False]
