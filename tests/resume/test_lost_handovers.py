"""A handover whose answer is lost, or that meets another run, loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from tests.conftest import eventually
from tests.resume.handed import (
    CONSUMER,
    FOREVER_MS,
    REFUND,
    asked,
)
from tests.resume.resume_stack import Stack
from twokey.gateway.approvals.decisions import Decided
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.orphans import OrphanFinder
from twokey.gateway.store.connection import Argument, Connection, Reply
from twokey.gateway.store.fences import Lease
from twokey.gateway.store.given_jobs import given
from twokey.gateway.store.handover import Handover
from twokey.gateway.store.jobs import Delivery, Job, JobQueue
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.leases import LeaseStore
from twokey.gateway.store.store import Store


@pytest.fixture
def forever(stack: Stack) -> None:
    """Let leases and deliveries of this store not end."""
    stack.store.lease_ms = FOREVER_MS


@pytest.mark.usefixtures("forever")
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_job_whose_handover_nobody_was_told_of_is_done_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    evalsha, asks = Connection.evalsha, list[Sequence[Argument]]()
    is_done = asyncio.Event()

    async def lossy(
        self: Connection,
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> list[Reply]:
        reply = await evalsha(self, source, keys, args, writes=writes)
        if "local is_taken" in source and not is_done.is_set():
            is_done.set()
            asks.append(args)
            if not is_cancelled:
                raise StoreUnavailable("The answer is lost.")
            await asyncio.Event().wait()
        return reply

    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        monkeypatch.setattr(Connection, "evalsha", lossy)
        deciding = asyncio.create_task(stack.decide(item))
        await is_done.wait()
        if is_cancelled:
            deciding.cancel()
        await asyncio.wait([deciding])

        await stack.words()
        await stack.idle()
    assert await stack.states() == [ItemState.EXECUTED]


@pytest.mark.usefixtures("forever")
async def test_a_job_is_done_at_once_whose_change_was_sent_twice(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer says that something moved: the first has the job."""
    evalsha, sent = Connection.evalsha, list[str]()

    async def twice(
        self: Connection,
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> list[Reply]:
        send = partial(evalsha, self, source, keys, args, writes=writes)
        if "local is_taken" in source and not sent:
            sent.append(source)
            await send()
            self.resent += 1
        return await send()

    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        monkeypatch.setattr(Connection, "evalsha", twice)

        assert isinstance(await stack.decide(item), Decided)

        await stack.words()
        await stack.idle()
    assert sent


@pytest.mark.usefixtures("forever")
async def test_a_job_that_joins_another_run_of_its_thread_gives_the_lease_to_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream may deliver an older job of the thread in the same moment."""
    item = await asked(stack)
    later, deliver = JobQueue.later, JobQueue.take
    is_delivered = asyncio.Event()
    take, free = LeaseStore.take, LeaseStore.free
    is_asked, has_joined, put_back = asyncio.Event(), asyncio.Event(), list[str]()

    async def late(store: Store, handover: Handover) -> Delivery | None:
        found = await given(store, handover)
        await stack.store.queue(stack.keys).put(handover.job)
        await is_delivered.wait()
        await is_asked.wait()
        return found

    async def look(_self: OrphanFinder) -> None:
        return

    async def delivered(
        self: JobQueue, consumer: str, *, block_ms: int
    ) -> Delivery | None:
        one = await deliver(self, consumer, block_ms=block_ms)
        if one is not None:
            # Once it runs, or has joined what runs.
            asyncio.get_running_loop().call_soon(
                lambda: asyncio.get_running_loop().call_soon(is_delivered.set)
            )
        return one

    async def freed(self: LeaseStore, keys: Keys, taken: Lease) -> None:
        has_joined.set()
        await free(self, keys, taken)

    async def slow(self: LeaseStore, keys: Keys, name: str) -> Lease:
        is_asked.set()
        await has_joined.wait()
        return await take(self, keys, name)

    async def noted(self: JobQueue, delivery: Delivery, *, delay_ms: int) -> None:
        put_back.append(delivery.id)
        await later(self, delivery, delay_ms=delay_ms)

    monkeypatch.setattr("twokey.gateway.resume.worker.given", late)
    # Its jobs would be the last that join.
    monkeypatch.setattr(OrphanFinder, "look", look)
    monkeypatch.setattr(JobQueue, "take", delivered)
    monkeypatch.setattr(LeaseStore, "take", slow)
    monkeypatch.setattr(LeaseStore, "free", freed)
    monkeypatch.setattr(JobQueue, "later", noted)
    async with stack.working():
        await eventually(partial(_offers, stack))
        await stack.idle()
        await stack.decide(item)
        await stack.words()
        await stack.idle()
    assert is_asked.is_set()
    assert put_back == []
    assert await stack.states() == [ItemState.EXECUTED]


async def _offers(stack: Stack) -> bool:
    """Return whether a worker of this process takes jobs of its decisions."""
    groups = await stack.store.conn.command("XINFO", "GROUPS", stack.keys.jobs)
    return bool(groups) and bool(stack.store.approvals.takers)


async def test_a_handover_that_got_lost_takes_no_lease_of_others(stack: Stack) -> None:
    await stack.store.queue(stack.keys).prepare()
    job = Job.to_resume("default", "shop", "t1")
    handover = Handover(
        stack.keys, job, consumer=CONSUMER, lease_ms=FOREVER_MS, known={}
    )
    async with stack.store.threads.lease(stack.keys, "default", "shop", "t1"):
        handover.lost()

        assert await given(stack.store, handover) is None
