"""A worker survives the failures around it, and notices that time has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.thread_state import ThreadState
from keyturn.gateway.store.runs.jobs import JobQueue
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
