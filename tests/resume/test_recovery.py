"""Losses of one side are found from the other, answered, and reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume import recovery
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.resume.threads import ThreadState
from keyturn.gateway.store.runs.jobs import JobKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import REFUND, Stack, open_stack


def looking(stack: Stack) -> Recovery:
    """Return what looks at both sides."""
    return Recovery(stack.store, Runners(stack.runners, stack.saver))


def forget_checkpoints(folder: Path) -> None:
    """Delete the file of the checkpoints."""
    for file in folder.glob("checkpoints.sqlite*"):
        file.unlink()


async def problems(stack: Stack) -> list[str]:
    """Return what a look finds, without changing anything."""
    return [gap.problem for gap in (await looking(stack).compare()).mismatches]


async def waits(stack: Stack, thread: str = "t1") -> None:
    """Bring a thread to its interrupt for a refund."""
    async with stack.working():
        await stack.ask(REFUND, thread=thread)
        await stack.asked(thread=thread)
        await stack.idle()


async def all_ended(stack: Stack) -> bool:
    """Return whether the store has no more pending items."""
    return not await stack.store.approvals.scheduled(stack.keys)


@pytest.mark.slow
async def test_a_thread_of_a_lost_record_is_told_and_ends(stack: Stack) -> None:
    await waits(stack)
    await stack.store.conn.command("FLUSHALL")

    assert await problems(stack) == [recovery.RECORD_LOST]
    async with stack.working():
        told = await stack.words()

    assert "has no record of this call" in told
    assert "Look before you ask again whether it ran before." in told
    assert sample_tools.ledger() == []
    assert await problems(stack) == []


@pytest.mark.slow
async def test_older_checkpoints_get_decisions(store: Store, tmp_path: Path) -> None:
    file, copy = tmp_path / "checkpoints.sqlite", tmp_path / "copy"
    async with open_stack(store, file) as stack:
        await waits(stack)
    copy.write_bytes(file.read_bytes())
    async with open_stack(store, file) as stack, stack.working():
        [item] = await stack.items()
        await stack.decide(item)
        ran = await stack.words()
    forget_checkpoints(tmp_path)
    copy.rename(file)

    async with open_stack(store, file) as stack:
        assert await problems(stack) == [recovery.DECIDED]
        async with stack.working():
            assert await stack.words(2) == ran

    assert len(sample_tools.ledger()) == 1


async def lose_the_jobs(stack: Stack) -> None:
    """Drop every job, as a failover of the store could."""
    queue = stack.store.queue(stack.keys)
    while taken := await queue.take(block_ms=1):
        await queue.done(taken)


@pytest.mark.slow
async def test_a_decision_whose_job_is_gone_is_carried_out(stack: Stack) -> None:
    await waits(stack)
    [item] = await stack.items()
    await stack.decide(item)
    await lose_the_jobs(stack)

    assert await problems(stack) == [recovery.DECIDED]
    async with stack.working():
        assert await stack.words() == "refunded 78291 899"
        await stack.idle()

    assert len(sample_tools.ledger()) == 1
    assert await problems(stack) == []


async def test_a_thread_that_was_cut_off_is_queued_while_no_process_runs_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waits(stack)
    state = await stack.runner.probe("t1")
    queue = stack.store.queue(stack.keys)

    async def cut_off(_thread: str) -> ThreadState:
        return replace(state, pending=(), is_cut_off=True)

    monkeypatch.setattr(stack.runner, "probe", cut_off)

    assert await problems(stack) == [recovery.CUT_OFF]
    async with stack.store.threads.lease(stack.keys, "shop", "t1"):
        assert await problems(stack) == []
    await looking(stack).recover(is_only_process=False)
    taken = await queue.take(block_ms=1)
    assert taken
    assert (taken.job.kind, taken.job.thread) == (JobKind.RESUME, "t1")


async def test_a_thread_another_gateway_may_have_goes_on(stack: Stack) -> None:
    await waits(stack)
    await stack.runner.delete("t1")

    found = await looking(stack).recover(is_only_process=False)

    assert [gap.problem for gap in found.gone] == [recovery.THREAD_GONE]
    assert await stack.states() == [ItemState.PENDING]
    await looking(stack).recover(is_only_process=True)
    assert await all_ended(stack)


@pytest.mark.slow
async def test_a_call_that_its_thread_forgot_is_found(stack: Stack) -> None:
    await waits(stack)
    await stack.runner.delete("t1")
    await stack.runner.start("t1", "hello", key="k")

    assert await problems(stack) == [recovery.THREAD_ENDED]
    async with stack.working():
        await eventually(lambda: all_ended(stack))

    assert await stack.states() == [ItemState.WITHDRAWN]


@pytest.mark.slow
async def test_an_error_about_one_thread_keeps_no_other_from_being_found(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waits(stack, "t1")
    await waits(stack, "t2")
    for thread in ("t1", "t2"):
        await stack.runner.delete(thread)
    probe = stack.runner.probe

    async def probed(thread: str) -> ThreadState:
        if thread == "t1":
            raise OSError("the disk")
        return await probe(thread)

    monkeypatch.setattr(stack.runner, "probe", probed)

    gaps = (await looking(stack).compare()).mismatches

    assert [gap.thread for gap in gaps] == ["t2"]


async def test_threads_of_other_programs_are_counted_and_left(stack: Stack) -> None:
    await waits(stack)
    await stack.store.conn.command("FLUSHALL")
    stack.runners = {"other": stack.runner}

    found = await looking(stack).recover(is_only_process=True)

    assert (found.mismatches, found.unserved) == ((), 1)
    assert await stack.store.queue(stack.keys).depth() == 0
