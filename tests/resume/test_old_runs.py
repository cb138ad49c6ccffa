"""A run that failed is forgotten with its approvals, and not while one is open."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.keys import RETENTION
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.runs.stalled import StalledRun
from tests.resume.resume_stack import Stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})
RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t1")
OLD_MS = int(RETENTION.total_seconds() * 1000) + 60_000


def place(stack: Stack) -> ThreadRef:
    return ThreadRef(stack.keys, "shop", "t1")


async def aged(stack: Stack) -> None:
    """Move all times of the run into the distant past."""
    keys, conn, run = stack.keys, stack.store.conn, place(stack).run
    row = json.loads(text(await conn.command("HGET", keys.stalled, run)))
    moments = {name: row[name] - OLD_MS for name in row if name.endswith("_ms")}
    old = {name: max(0, at_ms) for name, at_ms in moments.items()}
    kept = StalledRun.model_validate_json(json.dumps({**row, **old}))
    await conn.command("HSET", keys.stalled, run, kept.model_dump_json())


async def parked(stack: Stack) -> None:
    """Make the run fail with a permanent error."""
    await Retries(stack.store).failed(place(stack), KeyError(), left=RESUME)


async def is_kept(stack: Stack) -> bool:
    """Remove old runs in another process; return whether the run still exists."""
    await Retries(stack.store).forget_old(stack.keys)
    found = await stack.store.stalled.find(stack.keys, place(stack).run)
    return found is not None


async def test_a_parked_run_is_forgotten_when_its_approvals_are(stack: Stack) -> None:
    await parked(stack)
    assert await is_kept(stack)
    await aged(stack)

    assert not await is_kept(stack)
    assert len(await stack.events(EventName.RUN_DROPPED)) == 1


@pytest.mark.parametrize("state", ["pending", "in_doubt"])
async def test_a_run_is_kept_while_people_have_to_say_something(
    stack: Stack, state: str
) -> None:
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.idle()
    approval = item.id.rpartition(".")[0]
    if state == "in_doubt":  # nothing of it happens by itself
        head = stack.keys.head(approval)
        await stack.store.conn.command("HSET", head, "0:s", state)
        await stack.store.conn.command(
            "ZREM", stack.keys.expiry, stack.keys.listed(approval)
        )
    await parked(stack)
    await aged(stack)

    assert await is_kept(stack)


async def test_a_run_that_nobody_serves_is_forgotten_with_its_job(
    stack: Stack,
) -> None:
    queue, retries = stack.store.queue(stack.keys), Retries(stack.store)
    await queue.prepare()
    await queue.put(RESUME)
    taken = await queue.take("another", block_ms=1)
    assert taken
    await retries.requeue_unserved(place(stack), taken)
    await aged(stack)
    await stack.store.conn.command(
        "ZADD", stack.keys.retry, "XX", 0, RESUME.model_dump_json()
    )
    await queue.requeue_due()
    taken = await queue.take("another", block_ms=1)
    assert taken
    await retries.requeue_unserved(place(stack), taken)
    assert await stack.store.stalled.counts(stack.keys) == (1, 0)

    assert not await is_kept(stack)
    assert await queue.depth() == 0
