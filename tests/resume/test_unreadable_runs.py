"""What nobody can read of a run that failed stops no other run."""

from __future__ import annotations

import json

import pytest

from tests.resume import sample_tools
from tests.resume.house import House
from twokey.gateway.errors import NewerRecord
from twokey.gateway.policy.load import load_policy
from twokey.gateway.resume.announcing import Place
from twokey.gateway.resume.retries import Retries
from twokey.gateway.service.runs import RunService
from twokey.gateway.store.connection import text
from twokey.gateway.store.jobs import Job, JobKind
from twokey.gateway.store.stalled import RunState

REFUND = ("refund", {"order": "78291", "amount": 899.0})
RESUME = Job(kind=JobKind.RESUME, tenant="default", agent="shop", thread="t2")
NOW_OR_NEVER = load_policy("version: 1\n", "policy.yml")


async def kept_of(house: House, run: str) -> str:
    """Return what the store holds of a run."""
    return text(await house.store.conn.command("HGET", house.keys.stalled, run))


async def failed(house: House, thread: str = "t2") -> str:
    """Let the run of a thread fail; return its id."""
    at = Place(house.keys, "default", "shop", thread)
    left = RESUME.with_(thread=thread)
    await Retries(house.store).failed(at, KeyError(), left=left)
    return at.run


async def changed(house: House, run: str, **fields: object) -> None:
    """Write fields into a run's record, past our scripts."""
    body = json.dumps({**json.loads(await kept_of(house, run)), **fields})
    await house.store.conn.command("HSET", house.keys.stalled, run, body)


def service(house: House) -> RunService:
    return RunService(house.store, lambda: NOW_OR_NEVER)


@pytest.mark.parametrize(
    "fields",
    [
        {"of_nobody": 1},
        {"format": 2, "of_the_next_version": 1},
        {"id": "run_s0_\x1b]0;owned\x07"},
        {"agent": "another"},
        {"since_ms": 10**18},
    ],
)
async def test_a_run_that_nobody_can_read_stops_no_other(
    house: House, fields: dict[str, object]
) -> None:
    other = await failed(house, "t3")
    await changed(house, await failed(house), **fields)

    assert [one.id for one in await service(house).all()] == [other]
    async with house.working():
        await house.ask(REFUND)
        [item] = await house.asked()
        await house.decide(item)
        assert await house.words() == "refunded 78291 899"
    assert len(sample_tools.ledger()) == 1


async def test_a_thread_whose_failed_run_nobody_can_read_goes_on(house: House) -> None:
    run = await failed(house, "t1")
    await changed(house, run, of_nobody=1)

    async with house.working():
        await house.say("hello")
        await house.words()
        await house.idle()
    assert await kept_of(house, run) == ""
    assert await house.store.stalled.counts(house.keys) == (0, 0)


async def test_a_failed_run_of_a_newer_version_is_left_as_it_is(house: House) -> None:
    run = await failed(house)
    await changed(house, run, format=2, of_the_next_version=1)
    before = await kept_of(house, run)

    with pytest.raises(NewerRecord):
        await service(house).find(run)
    with pytest.raises(NewerRecord):
        await failed(house)

    assert await kept_of(house, run) == before
    assert await house.store.stalled.counts(house.keys) == (0, 1)


async def test_what_is_no_record_at_all_is_left_out(house: House) -> None:
    other = await failed(house)
    junk: list[str | bytes] = ["", "[]", "[" * 100_000, "{", "null", b"\xff"]
    for number, body in enumerate(junk):
        await house.store.conn.command("HSET", house.keys.stalled, f"r{number}", body)
    await house.store.conn.command("HSET", house.keys.stalled, b"\xff", "{}")

    assert [one.id for one in await service(house).all()] == [other]
    assert await service(house).find("r5") is None
    assert await house.store.conn.command("HEXISTS", house.keys.stalled, "r5") == 0


async def test_every_failed_run_says_its_format(house: House) -> None:
    run = await failed(house)

    assert json.loads(await kept_of(house, run))["format"] == 1
    found = await service(house).find(run)
    assert found
    assert found.state is RunState.PARKED
