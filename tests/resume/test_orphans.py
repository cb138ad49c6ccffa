"""A thread that no job brings forward is found and queued."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resume import sample_tools
from tests.resume.resume_stack import Stack
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.resume import orphans
from twokey.gateway.resume.orphans import OrphanFinder
from twokey.gateway.resume.runner import ThreadState
from twokey.gateway.resume.runners import Runners
from twokey.gateway.store.jobs import Job, JobKind

REFUND = ("refund", {"order": "78291", "amount": 899.0})


def finder(stack: Stack, **options: Any) -> OrphanFinder:
    """Return a finder that looks at once."""
    return looking_as(stack, Runners(stack.runners), **options)


def looking_as(stack: Stack, runners: Runners, **options: Any) -> OrphanFinder:
    """Return a finder of a process that runs these threads."""
    given: dict[str, Any] = {"rest_ms": 0, **options}
    return OrphanFinder(stack.store, runners, consumer="test", **given)


async def lose_the_jobs(stack: Stack) -> None:
    """Drop every job, as only a dead letter or a bug could."""
    queue = stack.store.queue(stack.keys)
    while taken := await queue.take("thief", block_ms=1):
        await queue.done(taken)


@pytest.mark.slow
async def test_a_decision_whose_job_is_gone_is_found_and_carried_out(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
    await stack.decide(item)
    await lose_the_jobs(stack)

    looking = finder(stack)
    assert await looking.look() == 1
    assert await looking.look() == 0

    async with stack.working():
        assert await stack.words() == "refunded 78291 899"
        await stack.idle()
    assert len(sample_tools.ledger()) == 1
    assert await looking.look() == 0


@pytest.mark.slow
@pytest.mark.parametrize("backs_off", [False, True])
async def test_a_thread_whose_job_waits_is_looked_at_once_it_has_none(
    stack: Stack, *, backs_off: bool
) -> None:
    """As thousands do after an outage: each would be read, and queued once more."""
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
    await stack.decide(item)
    queue = stack.store.queue(stack.keys)
    if backs_off:
        delivery = await queue.take("test", block_ms=1)
        assert delivery
        await queue.later(delivery, delay_ms=60_000)
    depth = await queue.depth()
    looking = finder(stack)

    for _ in range(2):
        assert await looking.look() == 0
    assert await queue.depth() == depth

    await stack.store.conn.command("DEL", stack.keys.retry)
    await lose_the_jobs(stack)
    assert await looking.look() == 1


@pytest.mark.slow
async def test_nobody_looks_among_more_jobs_than_can_be_told_apart(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
    await stack.decide(item)
    await lose_the_jobs(stack)
    queue = stack.store.queue(stack.keys)
    for number in range(3):
        await queue.put(Job.to_resume("default", "shop", f"another-{number}"))
    looking = finder(stack)

    with monkeypatch.context() as patch:
        patch.setattr(orphans, "_MOST_JOBS", 2)
        for _ in range(2):
            assert await looking.look() == 0

    assert await looking.look() == 1


@pytest.mark.slow
async def test_a_thread_that_waits_for_a_person_is_no_orphan(stack: Stack) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        await stack.asked()

    assert await finder(stack).look() == 0


async def test_a_turn_that_was_cut_off_is_found(stack: Stack) -> None:
    await stack.say("break")
    queue = stack.store.queue(stack.keys)
    await queue.prepare()
    await lose_the_jobs(stack)
    try:
        await stack.runner.start("t1", "break", key="k")
    except RuntimeError:
        await happened(stack, EventName.RUN_STARTED)

    assert await finder(stack).look() == 1
    taken = await queue.take("test", block_ms=1)
    assert taken
    assert (taken.job.kind, taken.job.thread) == (JobKind.RESUME, "t1")


async def test_a_thread_that_was_given_up_is_left_alone(stack: Stack) -> None:
    try:
        await stack.runner.start("t1", "break", key="k")
    except RuntimeError:
        await happened(stack, EventName.RUN_PARKED)

    assert await finder(stack).look() == 0


async def test_agents_of_two_gateways_do_not_hide_each_others_orphans(
    stack: Stack,
) -> None:
    await cut_off(stack)
    await happened(stack, EventName.RUN_STARTED)
    other = OrphanFinder(
        stack.store, Runners({"other": stack.runner}), consumer="o", rest_ms=0
    )
    for _ in range(3):
        assert await other.look() == 0

    assert await finder(stack).look() == 1


async def test_programs_with_threads_of_one_agent_leave_each_other_theirs(
    stack: Stack,
) -> None:
    await cut_off(stack)
    await happened(stack, EventName.RUN_STARTED)
    theirs, ours = Runners(), Runners()
    theirs.keep("shop", "another", stack.runner)
    ours.keep("shop", "t1", stack.runner)
    for _ in range(3):
        assert await looking_as(stack, theirs).look() == 0

    assert await looking_as(stack, ours).look() == 1


async def test_agents_of_one_name_but_two_tenants_are_two(stack: Stack) -> None:
    await cut_off(stack)
    await happened(stack, EventName.RUN_STARTED)
    other = OrphanFinder(
        stack.store, Runners(stack.runners), consumer="o", rest_ms=0, tenant="other"
    )
    assert await other.look() == 0

    assert await finder(stack).look() == 1


async def test_a_thread_that_cannot_be_read_hides_no_other(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_off(stack)
    await happened(stack, EventName.RUN_STARTED, thread="broken")
    await happened(stack, EventName.RUN_STARTED)
    probe = stack.runner.probe

    async def troubled(thread: str) -> ThreadState:
        if thread == "broken":
            raise RuntimeError("never seen before")
        return await probe(thread)

    monkeypatch.setattr(stack.runner, "probe", troubled)

    assert await finder(stack).look() == 1


async def test_a_reader_that_is_gone_does_not_keep_events_for_ever(
    stack: Stack,
) -> None:
    gone = OrphanFinder(
        stack.store, Runners({"gone": stack.runner}), consumer="g", rest_ms=0
    )
    await happened(stack, EventName.RUN_STARTED)
    await gone.look()
    looking = finder(stack, gone_ms=-1)

    await looking.look()

    groups = await stack.store.conn.command("XINFO", "GROUPS", stack.keys.outbox)
    assert "gone" not in str(groups)


@pytest.mark.slow
async def test_a_reader_that_begins_again_looks_at_all_that_is_open(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
    await stack.decide(item)
    await lose_the_jobs(stack)
    looking = finder(stack)
    await stack.store.conn.command("DEL", stack.keys.outbox)

    assert await looking.look() == 1

    # Its reader is dropped while it runs: the next look fails, the one after is whole.
    await lose_the_jobs(stack)
    await stack.store.conn.command("DEL", stack.keys.outbox)
    with pytest.raises(StoreUnavailable):
        await looking.look()
    assert await looking.look() == 1


async def cut_off(stack: Stack) -> None:
    """Leave a thread in the middle of its turn, without a job."""
    with pytest.raises(RuntimeError):
        await stack.runner.start("t1", "break", key="k")


async def happened(
    stack: Stack, name: EventName, *, agent: str = "shop", thread: str = "t1"
) -> None:
    """Put an event of a thread into the outbox."""
    event = Event(name=name, tenant="default", agent=agent, thread=thread)
    await stack.store.outbox(stack.keys, reader="").put(event)
