"""A worker survives the failures around it, and notices that time has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.resume.thread_state import ThreadState
from keyturn.gateway.resume.transient_retry import repeat
from keyturn.gateway.store.runs.jobs import Delivery, JobQueue
from tests.conftest import eventually
from tests.resume.resume_stack import Stack


async def test_reading_jobs_goes_on_after_anything(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.gateway.resume.worker.FIRST_PAUSE_S", 0.01)
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
    """A caller that stops it reads the reason for the wait."""
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


async def decide_two_amid_the_run_of_one(
    stack: Stack, is_running: asyncio.Event
) -> None:
    """Request three calls; decide two while the first answer is resumed."""
    await stack.ask(*(("refund", {"order": n, "amount": 5.0}) for n in "123"))
    first, *others = await stack.asked(3)
    await stack.decide(first)
    await is_running.wait()
    for item in others:
        await stack.decide(item)


async def test_what_is_decided_amid_a_run_that_fails_is_carried_out(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = Runner.resume
    troubles = [StoreUnavailable("gone"), StoreUnavailable("gone")]
    may_go_on, is_running = asyncio.Event(), asyncio.Event()

    async def troubled(
        self: Runner, thread: str, answers: Mapping[str, Any], *, key: str
    ) -> None:
        is_running.set()
        await may_go_on.wait()
        if troubles:
            raise troubles.pop()
        await resume(self, thread, answers, key=key)

    monkeypatch.setattr(Runner, "resume", troubled)
    async with stack.working():
        await decide_two_amid_the_run_of_one(stack, is_running)
        may_go_on.set()

        assert await stack.words()
        assert set(await stack.states()) == {ItemState.EXECUTED}
    assert troubles == []
