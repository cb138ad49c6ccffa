"""Kill a worker at any point: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import House, open_house
from tests.resume.processes import LEASE_MS, killed, worker
from twokey.gateway.approvals.decisions import Reconcile
from twokey.gateway.approvals.events import EventName
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.store.store import Store

pytestmark = pytest.mark.slow

REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})


@pytest.fixture
async def house(store: Store, tmp_path: Path) -> AsyncGenerator[House]:
    """Give a house whose leases are as short as those of the processes."""
    quick = Store(store.conn.url, lease_ms=LEASE_MS)
    async with open_house(quick, tmp_path / "checkpoints.db") as opened:
        yield opened
    await quick.close()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Give the place where the processes keep their threads, as the house does."""
    return tmp_path / "checkpoints.db"


@pytest.mark.parametrize("point", ["before_claim", "finished"])
async def test_a_kill_beside_the_tool_costs_nothing(
    house: House, checkpoints: Path, point: str
) -> None:
    async with worker(house.store.conn.url, checkpoints, die_at=point) as first:
        await house.ask(REFUND, EMAIL)
        refund, email = await house.asked(2)
        await house.decide(refund)
        await killed(first)

    async with worker(house.store.conn.url, checkpoints):
        await house.decide(email)
        words = await house.words()

    assert words == "refunded 78291 899 | mailed ana@example.org"
    assert sorted(line.split()[0] for line in sample_tools.ledger()) == [
        "email",
        "refund",
    ]


async def test_a_kill_between_two_questions_of_a_turn_loses_neither(
    house: House, checkpoints: Path
) -> None:
    url = house.store.conn.url
    async with worker(url, checkpoints, die_at="second_question") as first:
        await house.ask(REFUND, EMAIL)
        await killed(first)
    assert len((await house.runner.probe("t1")).pending) == 1

    async with worker(url, checkpoints):
        for item in await house.asked(2):
            await house.decide(item)
        words = await house.words()

    assert words == "refunded 78291 899 | mailed ana@example.org"
    assert await house.states() == [ItemState.EXECUTED] * 2


async def test_a_call_that_was_approved_before_a_kill_waits_for_no_other_question(
    house: House, checkpoints: Path
) -> None:
    url = house.store.conn.url
    async with worker(url, checkpoints, die_at="before_claim") as first:
        await house.ask(REFUND, EMAIL)
        refund, _ = await house.asked(2)
        await house.decide(refund)
        await killed(first)

    async def has_run() -> bool:
        return await house.states() == [ItemState.EXECUTED, ItemState.PENDING]

    async with worker(url, checkpoints):
        await eventually(has_run)


@pytest.mark.parametrize("point", ["claimed", "inside"])
async def test_a_kill_inside_the_tool_is_shown_and_settled_by_a_person(
    house: House, checkpoints: Path, point: str
) -> None:
    async with worker(house.store.conn.url, checkpoints, die_at=point) as first:
        await house.ask(REFUND)
        [refund] = await house.asked()
        await house.decide(refund)
        await killed(first)
    effects = 1 if point == "inside" else 0

    async with worker(house.store.conn.url, checkpoints):
        await eventually(lambda: _in_doubt(house))
        await house.idle()
        assert len(sample_tools.ledger()) == effects

        finding = Finding.EXECUTED if effects else Finding.RERUN
        [item] = await house.items()
        await house.decide(item, Reconcile(finding=finding))
        words = await house.words()

    assert len(sample_tools.ledger()) == 1
    assert await house.states() == [ItemState.EXECUTED]
    if finding is Finding.RERUN:
        assert words == "refunded 78291 899"
    assert len(await house.events(EventName.ITEM_IN_DOUBT)) == 1


async def test_a_killed_idempotent_tool_runs_again_under_the_same_key(
    house: House, checkpoints: Path
) -> None:
    async with worker(house.store.conn.url, checkpoints, die_at="inside") as first:
        await house.ask(EMAIL)
        [email] = await house.asked()
        await house.decide(email)
        await killed(first)

    async with worker(house.store.conn.url, checkpoints):
        assert await house.words() == "mailed ana@example.org"

    keys = {line.split()[-1] for line in sample_tools.ledger()}
    assert (len(sample_tools.ledger()), len(keys)) == (2, 1)
    assert await house.states() == [ItemState.EXECUTED]


async def test_a_stop_lets_the_running_tool_finish(
    house: House, checkpoints: Path
) -> None:
    async with worker(house.store.conn.url, checkpoints) as process:
        await house.ask(("slow", {"order": "1", "seconds": 1.0}))
        [slow] = await house.asked()
        await house.decide(slow)
        await eventually(_has_begun)

        process.send_signal(signal.SIGTERM)

        async with asyncio.timeout(20):
            assert await process.wait() == 0

    assert sample_tools.ledger() == ["begin 1", "end 1"]
    assert await house.states() == [ItemState.EXECUTED]
    assert await house.words() == "slow 1"


async def test_four_processes_carry_out_each_of_many_threads_once(
    house: House, checkpoints: Path
) -> None:
    url, threads = house.store.conn.url, [f"t{number}" for number in range(8)]
    async with (
        worker(url, checkpoints),
        worker(url, checkpoints),
        worker(url, checkpoints),
        worker(url, checkpoints),
    ):
        for thread in threads:
            await house.ask(("refund", {"order": thread, "amount": 1.0}), EMAIL,
                            thread=thread)  # fmt: skip
        for thread in threads:
            items = await house.asked(2, thread=thread)
            await asyncio.gather(*(house.decide(item) for item in items * 3))
        for thread in threads:
            words = await house.words(thread=thread)
            assert words == f"refunded {thread} 1 | mailed ana@example.org"

    refunds = [line.split()[1] for line in sample_tools.ledger() if line[0] == "r"]
    assert sorted(refunds) == threads
    assert len(sample_tools.ledger()) == 2 * len(threads)


async def _in_doubt(house: House) -> bool:
    state = await house.runner.probe("t1")
    kinds = [str(one.value) for one in state.pending]
    return await house.states() == [ItemState.IN_DOUBT] and any(
        "twokey.reconcile" in kind for kind in kinds
    )


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())
