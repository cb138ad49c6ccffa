"""A worker survives what goes wrong around it, and lets time pass whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import eventually
from tests.resume.resume_stack import Stack
from twokey.gateway.errors import StoreUnavailable
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
