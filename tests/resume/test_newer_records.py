"""A thread waits for the version that can read what it waits for."""

from __future__ import annotations

import logging

import pytest

from tests.conftest import eventually
from tests.resume.resume_stack import Stack
from twokey.gateway.errors import NewerRecord
from twokey.gateway.resume.diagnosis import diagnose
from twokey.gateway.resume.orphans import OrphanFinder
from twokey.gateway.resume.recovery import Recovery
from twokey.gateway.resume.retries import Retries
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.store import codec
from twokey.gateway.store.jobs import Job, JobKind

NEWER = str(codec.FORMAT + 1)
REFUND = ("refund", {"order": "78291", "amount": 899.0})


@pytest.mark.slow
async def test_a_job_about_a_newer_record_is_kept_until_that_version_runs_again(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
        head = stack.keys.head(item.id.rpartition(".")[0])
        await stack.store.conn.command("HSET", head, "format", NEWER)
        again = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
        await stack.store.queue(stack.keys).put(again)

        async def was_tried() -> bool:
            return f"newer version of Twokey (format {NEWER}" in caplog.text

        await eventually(was_tried)
        state: ThreadState = await stack.runner.probe("t1")
        assert len(state.pending) == 1

        async def is_kept() -> bool:
            # Two readings, between which it may move from one list to the other.
            return await stack.store.queue(stack.keys).depth() == 1

        await eventually(is_kept)
        await stack.store.conn.command("HSET", head, "format", str(codec.FORMAT))
        await stack.decide(item)
        assert "refunded 78291" in await stack.words()
        await stack.idle()


async def newer(stack: Stack, thread: str) -> None:
    """Let a thread ask about a record that a newer version wrote."""
    async with stack.working():
        await stack.ask(REFUND, thread=thread)
        [item] = await stack.asked(thread=thread)
        await stack.idle()
    head = stack.keys.head(item.id.rpartition(".")[0])
    await stack.store.conn.command("HSET", head, "format", NEWER)


async def decided_without_a_job(stack: Stack, thread: str) -> None:
    """Let a thread have its decision, and lose the job that brings it."""
    async with stack.working():
        await stack.ask(REFUND, thread=thread)
        [item] = await stack.asked(thread=thread)
        await stack.idle()
    await stack.decide(item)
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    while taken := await queue.take("thief", block_ms=1):
        await queue.done(taken)


@pytest.mark.slow
async def test_a_newer_record_keeps_no_other_thread_from_being_found(
    stack: Stack,
) -> None:
    await newer(stack, "t1")
    await decided_without_a_job(stack, "t2")
    found = OrphanFinder(
        stack.store, Runners(stack.runners), consumer="test", rest_ms=0
    )

    assert await found.look() == 1

    taken = await stack.store.queue(stack.keys).take("test", block_ms=1)
    assert taken
    assert taken.job.thread == "t2"


@pytest.mark.slow
async def test_a_newer_record_keeps_no_other_thread_from_being_recovered(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    await newer(stack, "t1")
    await decided_without_a_job(stack, "t2")

    looked = await Recovery(stack.store, Runners(stack.runners, stack.saver)).recover(
        is_only_process=True
    )

    assert [gap.thread for gap in looked.mismatches] == ["t2"]
    # It is sound, and another process goes on with it: nobody is to be woken.
    assert "record.newer thread=t1 why=" in caplog.text
    assert not [one for one in caplog.records if one.levelno > logging.WARNING]


@pytest.mark.slow
async def test_a_run_whose_calls_a_newer_version_wrote_is_not_said_to_be_dropped(
    stack: Stack,
) -> None:
    await newer(stack, "t1")
    at = ThreadRef(stack.keys, "default", "shop", "t1")
    job = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
    await Retries(stack.store).failed(at, ConnectionError(), left=job)
    [run] = await stack.reviews.runs.all()

    with pytest.raises(NewerRecord):
        await stack.reviews.runs.drop(run, "T0/U0ANA")

    assert await stack.reviews.runs.all() == [run]
    assert not await stack.store.stalled.is_dropped(stack.keys, at.run)


def test_a_newer_record_is_not_told_as_a_store_that_is_away() -> None:
    told = diagnose(NewerRecord("ap_s0_x", format=int(NEWER), known=codec.FORMAT))

    assert told.can_pass
    assert "newer version of Twokey" in told.reason
