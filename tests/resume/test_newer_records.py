"""A thread waits for the version that can read what it waits for."""

from __future__ import annotations

import pytest

from tests.conftest import eventually
from tests.resume.house import House
from twokey.gateway.errors import NewerRecord
from twokey.gateway.resume.diagnosis import diagnose
from twokey.gateway.resume.orphans import OrphanFinder
from twokey.gateway.resume.recovery import Recovery
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.store.jobs import Job, JobKind

REFUND = ("refund", {"order": "78291", "amount": 899.0})


async def test_a_job_about_a_newer_record_is_kept_until_that_version_runs_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()
        await house.idle()
        blobs = house.keys.blobs(item.id.rpartition(".")[0])
        await house.store.conn.command("HSET", blobs, "format", "2")
        again = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
        await house.store.queue(house.keys).put(again)

        async def was_tried() -> bool:
            return "written by a newer version of Twokey (format 2" in caplog.text

        await eventually(was_tried)
        state: ThreadState = await house.runner.probe("t1")
        assert len(state.pending) == 1
        assert await house.store.queue(house.keys).depth() == 1

        await house.store.conn.command("HSET", blobs, "format", "1")
        await house.decide(item)
        assert "refunded 78291" in await house.words()
        await house.idle()


async def newer(house: House, thread: str) -> None:
    """Let a thread ask about a record that a newer version wrote."""
    async with house.working():
        await house.ask(REFUND, thread=thread)
        [item] = await house.asked(thread=thread)
        await house.idle()
    blobs = house.keys.blobs(item.id.rpartition(".")[0])
    await house.store.conn.command("HSET", blobs, "format", "2")


async def decided_without_a_job(house: House, thread: str) -> None:
    """Let a thread have its decision, and lose the job that brings it."""
    async with house.working():
        await house.ask(REFUND, thread=thread)
        [item] = await house.asked(thread=thread)
        await house.idle()
    await house.decide(item)
    queue = house.store.queue(house.keys)
    await queue.prepare()
    while taken := await queue.take("thief", block_ms=1):
        await queue.done(taken)


async def test_a_newer_record_keeps_no_other_thread_from_being_found(
    house: House,
) -> None:
    await newer(house, "t1")
    await decided_without_a_job(house, "t2")
    found = OrphanFinder(
        house.store, Runners(house.runners), consumer="test", rest_ms=0
    )

    assert await found.look() == 1

    taken = await house.store.queue(house.keys).take("test", block_ms=1)
    assert taken
    assert taken.job.thread == "t2"


async def test_a_newer_record_keeps_no_other_thread_from_being_recovered(
    house: House,
) -> None:
    await newer(house, "t1")
    await decided_without_a_job(house, "t2")

    looked = await Recovery(house.store, Runners(house.runners, house.saver)).look(
        is_alone=True
    )

    assert [gap.thread for gap in looked.gaps] == ["t2"]


def test_a_newer_record_is_not_told_as_a_store_that_is_away() -> None:
    told = diagnose(NewerRecord("ap_s0_x", format=2, known=1))

    assert told.can_pass
    assert "newer version of Twokey" in told.reason
