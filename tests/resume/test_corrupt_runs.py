"""A corrupt record of a failed run stops no other run."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.retries import Retries
from keyturn.gateway.resume.store_threads import ThreadRef
from keyturn.gateway.service.people.freezing import RunService
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.runs.jobs import Job, JobKind
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})
RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t2")
NOW_OR_NEVER = load_policy("version: 1\n", "policy.yml")


async def kept_of(stack: Stack, run: str) -> str:
    """Return the stored fields of a run."""
    return text(await stack.store.conn.command("HGET", stack.keys.stalled, run))


async def failed(stack: Stack, thread: str = "t2") -> str:
    """Make the run of a thread fail; return its id."""
    at = ThreadRef(stack.keys, "shop", thread)
    left = RESUME.with_(thread=thread)
    await Retries(stack.store).failed(at, KeyError(), left=left)
    return at.run


async def changed(stack: Stack, run: str, **fields: object) -> None:
    """Write fields into a run's record, past our scripts."""
    body = json.dumps({**json.loads(await kept_of(stack, run)), **fields})
    await stack.store.conn.command("HSET", stack.keys.stalled, run, body)


def service(stack: Stack) -> RunService:
    return RunService(stack.store, lambda: NOW_OR_NEVER)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"of_nobody": 1},
        {"id": "run_default_\x1b]0;owned\x07"},
        {"agent": "another"},
        {"since_ms": 10**18},
    ],
)
async def test_a_run_that_nobody_can_read_stops_no_other(
    stack: Stack, fields: dict[str, object]
) -> None:
    other = await failed(stack, "t3")
    await changed(stack, await failed(stack), **fields)

    assert [one.id for one in await service(stack).all()] == [other]
    async with stack.working():
        await stack.ask(REFUND)
        [item] = await stack.asked()
        await stack.decide(item)
        assert await stack.words() == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1


async def test_a_thread_whose_failed_run_nobody_can_read_goes_on(stack: Stack) -> None:
    run = await failed(stack, "t1")
    await changed(stack, run, of_nobody=1)

    async with stack.working():
        await stack.say("hello")
        await stack.words()
        await stack.idle()
    assert await kept_of(stack, run) == ""
    assert await stack.store.stalled.counts(stack.keys) == (0, 0)


async def test_what_is_no_record_at_all_is_left_out(stack: Stack) -> None:
    other = await failed(stack)
    junk: list[str | bytes] = ["", "[]", "[" * 100_000, "{", "null", b"\xff"]
    runs = [
        stack.keys.stalled_run("shop", f"junk-{number}") for number in range(len(junk))
    ]
    for run, body in zip(runs, junk, strict=True):
        await stack.store.conn.command("HSET", stack.keys.stalled, run, body)
    await stack.store.conn.command("HSET", stack.keys.stalled, b"\xff", "{}")

    assert [one.id for one in await service(stack).all()] == [other]
    assert await service(stack).find(runs[5]) is None
    assert await stack.store.conn.command("HEXISTS", stack.keys.stalled, runs[5]) == 0
