"""A run that failed is forgotten with its approvals, and not while one is open."""

from __future__ import annotations

import json

import pytest

from tests.resume.house import House
from twokey.gateway.approvals.events import EventName
from twokey.gateway.resume.announcing import Place
from twokey.gateway.resume.retries import Retries
from twokey.gateway.store.connection import text
from twokey.gateway.store.jobs import Job, JobKind
from twokey.gateway.store.keys import RETENTION
from twokey.gateway.store.stalled import StalledRun

REFUND = ("refund", {"order": "78291", "amount": 899.0})
RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
OLD_MS = int(RETENTION.total_seconds() * 1000) + 60_000


def place(house: House) -> Place:
    return Place(house.keys, "default", "shop", "t1")


async def aged(house: House) -> None:
    """Let everything that is kept of the run have happened long ago."""
    keys, conn, run = house.keys, house.store.conn, place(house).run
    row = json.loads(text(await conn.command("HGET", keys.stalled, run)))
    moments = {name: row[name] - OLD_MS for name in row if name.endswith("_ms")}
    old = {name: max(0, at_ms) for name, at_ms in moments.items()}
    kept = StalledRun.model_validate_json(json.dumps({**row, **old}))
    await conn.command("HSET", keys.stalled, run, kept.model_dump_json())
    for zset in (keys.stalled_waiting, keys.stalled_parked):
        await conn.command("ZADD", zset, "XX", old["at_ms"], run)


async def parked(house: House) -> None:
    """Let the run fail for a reason that cannot pass."""
    await Retries(house.store).failed(place(house), KeyError(), left=RESUME)


async def is_kept(house: House) -> bool:
    """Let a process look what is old; say whether the run is still there."""
    await Retries(house.store).forget_old()
    found = await house.store.stalled.find(house.keys, place(house).run)
    return found is not None


async def test_a_parked_run_is_forgotten_when_its_approvals_are(house: House) -> None:
    await parked(house)
    assert await is_kept(house)
    await aged(house)

    assert not await is_kept(house)
    assert len(await house.events(EventName.RUN_DROPPED)) == 1


@pytest.mark.parametrize("state", ["pending", "in_doubt"])
async def test_a_run_is_kept_while_people_have_to_say_something(
    house: House, state: str
) -> None:
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()
        await house.idle()
    approval = item.id.rpartition(".")[0]
    if state == "in_doubt":  # nothing of it happens by itself
        head = house.keys.head(approval)
        await house.store.conn.command("HSET", head, "0:s", state)
        await house.store.conn.command("ZREM", house.keys.expiry, approval)
    await parked(house)
    await aged(house)

    assert await is_kept(house)


async def test_a_run_that_nobody_serves_is_forgotten_with_its_job(
    house: House,
) -> None:
    queue, retries = house.store.queue(house.keys), Retries(house.store)
    await queue.prepare()
    await queue.put(RESUME)
    taken = await queue.take("another", block_ms=1)
    assert taken
    await retries.unserved(place(house), taken)
    await aged(house)
    await house.store.conn.command(
        "ZADD", house.keys.retry, "XX", 0, RESUME.model_dump_json()
    )
    await queue.requeue_due()
    taken = await queue.take("another", block_ms=1)
    assert taken
    await retries.unserved(place(house), taken)
    assert await house.store.stalled.counts(house.keys) == (1, 0)

    assert not await is_kept(house)
    assert await queue.depth() == 0
