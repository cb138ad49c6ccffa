"""A thread that no job brings forward is found and queued."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resume import sample_tools
from tests.resume.house import House
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.resume.orphans import OrphanFinder
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.store.jobs import JobKind

REFUND = ("refund", {"order": "78291", "amount": 899.0})


def finder(house: House, **options: Any) -> OrphanFinder:
    """Return a finder that looks at once."""
    return looking_as(house, Runners(house.runners), **options)


def looking_as(house: House, runners: Runners, **options: Any) -> OrphanFinder:
    """Return a finder of a process that runs these threads."""
    given: dict[str, Any] = {"rest_ms": 0, **options}
    return OrphanFinder(house.store, runners, consumer="test", **given)


async def lose_the_jobs(house: House) -> None:
    """Drop every job, as only a dead letter or a bug could."""
    queue = house.store.queue(house.keys)
    while taken := await queue.take("thief", block_ms=1):
        await queue.done(taken)


async def test_a_decision_whose_job_is_gone_is_found_and_carried_out(
    house: House,
) -> None:
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()
    await house.decide(item)
    await lose_the_jobs(house)

    looking = finder(house)
    assert await looking.look() == 1
    assert await looking.look() == 0

    async with house.working():
        assert await house.words() == "refunded 78291 899"
        await house.idle()
    assert len(sample_tools.ledger()) == 1
    assert await looking.look() == 0


async def test_a_thread_that_waits_for_a_person_is_no_orphan(house: House) -> None:
    async with house.working():
        await house.ask(REFUND)
        await house.asked()

    assert await finder(house).look() == 0


async def test_a_turn_that_was_cut_off_is_found(house: House) -> None:
    await house.say("break")
    queue = house.store.queue(house.keys)
    await queue.prepare()
    await lose_the_jobs(house)
    try:
        await house.runner.start("t1", "break", key="k")
    except RuntimeError:
        await happened(house, EventName.RUN_STARTED)

    assert await finder(house).look() == 1
    taken = await queue.take("test", block_ms=1)
    assert taken
    assert (taken.job.kind, taken.job.thread) == (JobKind.RESUME, "t1")


async def test_a_thread_that_was_given_up_is_left_alone(house: House) -> None:
    try:
        await house.runner.start("t1", "break", key="k")
    except RuntimeError:
        await happened(house, EventName.RUN_PARKED)

    assert await finder(house).look() == 0


async def test_agents_of_two_gateways_do_not_hide_each_others_orphans(
    house: House,
) -> None:
    await cut_off(house)
    await happened(house, EventName.RUN_STARTED)
    other = OrphanFinder(
        house.store, Runners({"other": house.runner}), consumer="o", rest_ms=0
    )
    for _ in range(3):
        assert await other.look() == 0

    assert await finder(house).look() == 1


async def test_programs_with_threads_of_one_agent_leave_each_other_theirs(
    house: House,
) -> None:
    await cut_off(house)
    await happened(house, EventName.RUN_STARTED)
    theirs, ours = Runners(), Runners()
    theirs.keep("shop", "another", house.runner)
    ours.keep("shop", "t1", house.runner)
    for _ in range(3):
        assert await looking_as(house, theirs).look() == 0

    assert await looking_as(house, ours).look() == 1


async def test_agents_of_one_name_but_two_tenants_are_two(house: House) -> None:
    await cut_off(house)
    await happened(house, EventName.RUN_STARTED)
    other = OrphanFinder(
        house.store, Runners(house.runners), consumer="o", rest_ms=0, tenant="other"
    )
    assert await other.look() == 0

    assert await finder(house).look() == 1


async def test_a_thread_that_cannot_be_read_hides_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_off(house)
    await happened(house, EventName.RUN_STARTED, thread="broken")
    await happened(house, EventName.RUN_STARTED)
    probe = house.runner.probe

    async def troubled(thread: str) -> ThreadState:
        if thread == "broken":
            raise RuntimeError("never seen before")
        return await probe(thread)

    monkeypatch.setattr(house.runner, "probe", troubled)

    assert await finder(house).look() == 1


async def test_a_reader_that_is_gone_does_not_keep_events_for_ever(
    house: House,
) -> None:
    gone = OrphanFinder(
        house.store, Runners({"gone": house.runner}), consumer="g", rest_ms=0
    )
    await happened(house, EventName.RUN_STARTED)
    await gone.look()
    looking = finder(house, gone_ms=-1)

    await looking.look()

    groups = await house.store.conn.command("XINFO", "GROUPS", house.keys.outbox)
    assert "gone" not in str(groups)


async def test_whoever_begins_to_read_again_looks_at_all_that_is_open(
    house: House,
) -> None:
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()
    await house.decide(item)
    await lose_the_jobs(house)
    looking = finder(house)
    await house.store.conn.command("DEL", house.keys.outbox)

    assert await looking.look() == 1

    # Its reader is dropped while it runs: the next look fails, the one after is whole.
    await lose_the_jobs(house)
    await house.store.conn.command("DEL", house.keys.outbox)
    with pytest.raises(StoreUnavailable):
        await looking.look()
    assert await looking.look() == 1


async def cut_off(house: House) -> None:
    """Leave a thread in the middle of its turn, without a job."""
    with pytest.raises(RuntimeError):
        await house.runner.start("t1", "break", key="k")


async def happened(
    house: House, name: EventName, *, agent: str = "shop", thread: str = "t1"
) -> None:
    """Put an event of a thread into the outbox."""
    event = Event(name=name, tenant="default", agent=agent, thread=thread)
    await house.store.outbox(house.keys, reader="").put(event)
