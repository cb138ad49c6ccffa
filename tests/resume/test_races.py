"""Many hands at one thread: it goes on, and each call runs once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import House, open_house
from twokey.gateway.approvals.decisions import Settled, Stale
from twokey.gateway.approvals.events import EventName
from twokey.gateway.errors import ThreadUnavailable
from twokey.gateway.resume.announcing import Place
from twokey.gateway.resume.leases import under_lease
from twokey.gateway.store.jobs import Job, JobKind
from twokey.gateway.store.store import Store

EMAIL = ("email", {"to": "ana@example.org"})


@pytest.fixture
async def second(house: House, tmp_path: Path) -> AsyncGenerator[House]:
    """Give another process's view of the same house."""
    store = Store(house.store.conn.url, lease_ms=2000)
    async with open_house(store, tmp_path / "checkpoints.db") as opened:
        yield opened
    await store.close()


@pytest.mark.slow
async def test_two_workers_with_the_last_two_items_never_lose_the_continuation(
    house: House, second: House
) -> None:
    threads = [f"t{number}" for number in range(40)]
    async with house.working(), second.working():
        for thread in threads:
            await house.ask(("refund", {"order": thread, "amount": 1.0}), EMAIL,
                            thread=thread)  # fmt: skip
        for thread in threads:
            items = await house.asked(2, thread=thread)
            await asyncio.gather(*(house.decide(item) for item in items))
        for thread in threads:
            words = await house.words(thread=thread)
            assert words == f"refunded {thread} 1 | mailed ana@example.org"

    assert (
        len(sample_tools.ledger())
        == len(set(sample_tools.ledger()))
        == 2 * len(threads)
    )


@pytest.mark.slow
async def test_three_clicks_during_a_slow_tool_are_one_execution(
    house: House, second: House
) -> None:
    async with house.working(), second.working():
        await house.ask(("slow", {"order": "1", "seconds": 2.0}))
        [slow] = await house.asked()

        first = await house.decide(slow)
        await eventually(_has_begun)
        again = [await house.decide(slow) for _ in range(2)]
        for _ in range(3):  # and what a lost acknowledgement would bring back
            await house.store.queue(house.keys).put(_resume("t1"))

        assert await house.words() == "slow 1"
        await house.idle()

    assert isinstance(first, Settled)
    assert all(isinstance(outcome, Stale) for outcome in again)
    assert sample_tools.ledger() == ["begin 1", "end 1"]
    assert len(await house.events(EventName.ITEM_EXECUTING)) == 1


async def test_a_tool_that_outlives_every_lease_is_run_once(
    store: Store, tmp_path: Path
) -> None:
    houses = [Store(store.conn.url, lease_ms=400) for _ in range(2)]
    place = tmp_path / "checkpoints.db"
    async with (
        open_house(houses[0], place) as house,
        open_house(houses[1], place) as other,
        house.working(),
        other.working(),
    ):
        await house.ask(("slow", {"order": "1", "seconds": 1.5}))
        [slow] = await house.asked()
        await house.decide(slow)
        assert await house.words() == "slow 1"
        await house.idle()

        assert sample_tools.ledger() == ["begin 1", "end 1"]
        assert await house.events(EventName.ITEM_IN_DOUBT) == []
    for one in houses:
        await one.close()


async def test_a_job_finds_the_process_that_runs_its_agent(
    house: House, second: House
) -> None:
    second.runners.clear()
    async with second.working():
        await house.say("hello")
        await eventually(lambda: _waits_in_retry(house))
        async with house.working():
            assert await house.words() == "You said hello"


async def test_jobs_that_find_nothing_to_do_change_nothing(house: House) -> None:
    async with house.working():
        await house.ask(EMAIL)
        [email] = await house.asked()
        queue = house.store.queue(house.keys)
        await asyncio.gather(*(queue.put(_resume("t1")) for _ in range(50)))
        await queue.put(_resume("no-such-thread"))
        await house.idle()
        assert sample_tools.ledger() == []

        await house.decide(email)
        await house.words()
        await asyncio.gather(*(queue.put(_resume("t1")) for _ in range(50)))
        await house.idle()

    assert len(sample_tools.ledger()) == 1
    assert len(await house.events(EventName.RUN_FINISHED)) == 1


async def test_only_one_at_a_time_runs_a_thread(house: House) -> None:
    at = Place(house.keys, "default", "shop", "t1")

    async def outer() -> str:
        with pytest.raises(ThreadUnavailable):
            await under_lease(house.store, at, inner)
        return "done"

    async def inner() -> str:
        raise AssertionError("two ran one thread")

    assert await under_lease(house.store, at, outer) == "done"


async def test_work_stops_when_its_lease_is_lost(store: Store) -> None:
    quick = Store(store.conn.url, lease_ms=150)
    at = Place(quick.keys_of_tenant("default"), "default", "shop", "t1")
    ends: list[str] = []

    async def work() -> None:
        await quick.conn.command("DEL", at.keys.lease("default", "shop", "t1"))
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("stopped")

    with pytest.raises(ThreadUnavailable, match="its lease"):
        await under_lease(quick, at, work)

    assert ends == ["stopped"]
    await quick.close()


def _resume(thread: str) -> Job:
    return Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread=thread)


async def _waits_in_retry(house: House) -> bool:
    return await house.store.conn.command("ZCARD", house.keys.retry) == 1


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())
