"""A thread that no job brings forward is found and queued."""

from __future__ import annotations

from gateway.approvals.events import Event, EventName
from gateway.resume.orphans import OrphanFinder
from gateway.resume.runners import Runners
from gateway.store.jobs import JobKind
from tests.resume import shop
from tests.resume.house import House

REFUND = ("refund", {"order": "78291", "amount": 899.0})


def finder(house: House) -> OrphanFinder:
    """Return a finder that looks at once."""
    return OrphanFinder(house.store, Runners(house.runners), consumer="test", rest_ms=0)


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

    assert await finder(house).look() == 1
    assert await finder(house).look() == 0

    async with house.working():
        assert await house.words() == "refunded 78291 899"
        await house.idle()
    assert len(shop.ledger()) == 1
    assert await finder(house).look() == 0


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
        await happened(house, EventName.RUN_FAILED)

    assert await finder(house).look() == 0


async def test_threads_of_agents_elsewhere_are_left_to_them(house: House) -> None:
    await happened(house, EventName.RUN_STARTED, agent="other")
    await happened(house, EventName.RUN_STARTED, thread="")

    assert await finder(house).look() == 0


async def happened(
    house: House, name: EventName, *, agent: str = "shop", thread: str = "t1"
) -> None:
    """Put an event of a thread into the outbox."""
    event = Event(name=name, tenant="default", agent=agent, thread=thread)
    await house.store.outbox(house.keys, reader="").put(event)
