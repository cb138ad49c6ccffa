"""A worker survives what goes wrong around it, and lets time pass whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import eventually
from tests.resume.resume_stack import Stack
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.periodic import repeat
from twokey.gateway.resume.retries import Retries
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.resume.runner import Runner, ThreadState
from twokey.gateway.store.jobs import Delivery, JobQueue


async def test_reading_jobs_goes_on_after_anything(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twokey.gateway.resume.worker.FIRST_PAUSE_S", 0.01)
    troubles: list[Exception] = [
        StoreUnavailable("gone"),
        RuntimeError("never seen before"),
        StoreUnavailable("gone"),
    ]
    take = JobQueue.take

    async def troubled(self: JobQueue, consumer: str, *, block_ms: int) -> object:
        if troubles:
            raise troubles.pop(0)
        return await take(self, consumer, block_ms=block_ms)

    monkeypatch.setattr(JobQueue, "take", troubled)
    async with stack.working():
        await stack.say("hello")
        assert await stack.words() == "You said hello"

    assert troubles == []


@pytest.mark.slow
async def test_a_job_that_cannot_be_put_away_is_delivered_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[Exception] = [StoreUnavailable("gone"), RuntimeError("a bug")]
    record_resumed = Retries.record_resumed

    async def troubled(
        self: Retries, at: ThreadRef, delivery: Delivery | None, runner: Runner
    ) -> None:
        if troubles:
            raise troubles.pop(0)
        await record_resumed(self, at, delivery, runner)

    monkeypatch.setattr(Retries, "record_resumed", troubled)
    monkeypatch.setattr(stack.store, "lease_ms", 300)
    async with stack.working():
        await stack.say("hello")
        assert await stack.words() == "You said hello"
        await stack.idle()

    assert troubles == []


@pytest.mark.slow
async def test_a_store_that_fails_in_the_middle_leaves_the_job_to_be_tried_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[Exception] = [StoreUnavailable("gone")]
    probe = stack.runner.probe

    async def troubled(thread: str) -> ThreadState:
        if troubles:
            raise troubles.pop(0)
        return await probe(thread)

    monkeypatch.setattr(stack.runner, "probe", troubled)
    monkeypatch.setattr(stack.store, "lease_ms", 300)
    async with stack.working():
        await stack.say("hello")
        assert await stack.words() == "You said hello"


async def test_a_process_knows_which_threads_it_runs(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stops it reads what is waited for."""
    at_work, seen = stack.store.threads.at_work, list[set[tuple[str, str]]]()
    start = stack.runner.start

    async def noted(thread: str, text: str, *, key: str) -> None:
        seen.append(set(at_work))
        await start(thread, text, key=key)

    monkeypatch.setattr(stack.runner, "start", noted)
    async with stack.working():
        await stack.say("hello")
        await stack.words()
        await stack.idle()

    assert seen == [{("shop", "t1")}]
    assert at_work == set()


async def test_time_passes_whatever_fails() -> None:
    stop = asyncio.Event()
    troubles: list[Exception] = [StoreUnavailable("gone"), RuntimeError("a bug")]
    calls: list[int] = []

    async def work() -> None:
        calls.append(len(troubles))
        if troubles:
            raise troubles.pop(0)

    async def is_enough() -> bool:
        return len(calls) >= 4

    passing = asyncio.create_task(repeat(work, stop, every_s=0.01))
    await eventually(is_enough)
    stop.set()
    await passing

    assert calls[:4] == [2, 1, 0, 0]


async def test_jobs_that_come_while_their_thread_runs_are_done_by_one_more_run(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume, take, later = LangGraphLocal.resume, JobQueue.take, JobQueue.later
    may_go_on, sent, taken, put_back = asyncio.Event(), list[int](), list[str](), 0

    async def slow(
        self: LangGraphLocal, thread: str, answers: Mapping[str, Any], *, key: str
    ) -> None:
        sent.append(len(answers))
        await may_go_on.wait()
        await resume(self, thread, answers, key=key)

    async def counted(
        self: JobQueue, consumer: str, *, block_ms: int
    ) -> Delivery | None:
        found = await take(self, consumer, block_ms=block_ms)
        if found is not None:
            taken.append(found.id)
        return found

    async def put(self: JobQueue, delivery: Delivery, *, delay_ms: int) -> None:
        nonlocal put_back
        put_back += 1
        await later(self, delivery, delay_ms=delay_ms)

    # Before the worker starts: a take that waits already would not be counted.
    monkeypatch.setattr(JobQueue, "take", counted)
    async with stack.working():
        calls = [("refund", {"order": str(n), "amount": 5.0}) for n in range(4)]
        await stack.ask(*calls)
        first, *others = await stack.asked(4)
        await stack.idle()
        taken.clear()
        monkeypatch.setattr(LangGraphLocal, "resume", slow)
        monkeypatch.setattr(JobQueue, "later", put)

        async def is_running() -> bool:
            return bool(sent)

        async def are_taken() -> bool:
            return len(taken) >= 3

        # This one is handed over; the others come from the stream.
        await stack.decide(first)
        await eventually(is_running)
        for item in others:
            await stack.decide(item)
        await eventually(are_taken)
        may_go_on.set()
        await stack.words()
        await stack.idle()

    assert sent == [1, 3]
    assert put_back == 0


async def decide_two_amid_the_run_of_one(
    stack: Stack, is_running: asyncio.Event
) -> None:
    """Let three calls be asked for; decide two while the answer of one is resumed."""
    await stack.ask(*(("refund", {"order": n, "amount": 5.0}) for n in "123"))
    first, *others = await stack.asked(3)
    await stack.decide(first)
    await is_running.wait()
    for item in others:
        await stack.decide(item)


async def test_what_joined_a_run_that_failed_is_put_back(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = LangGraphLocal.resume
    troubles = [StoreUnavailable("gone"), StoreUnavailable("gone")]
    may_go_on, is_running = asyncio.Event(), asyncio.Event()

    async def troubled(
        self: LangGraphLocal, thread: str, answers: Mapping[str, Any], *, key: str
    ) -> None:
        is_running.set()
        await may_go_on.wait()
        if troubles:
            raise troubles.pop()
        await resume(self, thread, answers, key=key)

    monkeypatch.setattr(LangGraphLocal, "resume", troubled)
    async with stack.working():
        await decide_two_amid_the_run_of_one(stack, is_running)
        may_go_on.set()

        assert await stack.words()
        assert set(await stack.states()) == {ItemState.EXECUTED}
    assert troubles == []


async def test_what_joined_a_run_is_kept_from_other_processes_as_long_as_it_takes(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume, holding = LangGraphLocal.resume, JobQueue.holding
    may_go_on, is_running = asyncio.Event(), asyncio.Event()
    kept: set[str] = set()

    async def slow(
        self: LangGraphLocal, thread: str, answers: Mapping[str, Any], *, key: str
    ) -> None:
        is_running.set()
        await may_go_on.wait()
        await resume(self, thread, answers, key=key)

    @asynccontextmanager
    async def noted(
        self: JobQueue, consumer: str, delivery: Delivery
    ) -> AsyncGenerator[None]:
        async with holding(self, consumer, delivery):
            kept.add(delivery.id)
            yield
            kept.discard(delivery.id)

    monkeypatch.setattr(LangGraphLocal, "resume", slow)
    monkeypatch.setattr(JobQueue, "holding", noted)
    async with stack.working():
        await decide_two_amid_the_run_of_one(stack, is_running)

        async def are_kept() -> bool:
            return len(kept) == 3

        await eventually(are_kept)
        may_go_on.set()
        assert await stack.words()
        await stack.idle()
    assert kept == set()
