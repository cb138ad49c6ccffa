"""Kill a worker at any point: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.processes import LEASE_MS, killed, worker
from tests.resume.resume_stack import Stack, open_stack
from tests.store_secrets import SECRETS

pytestmark = pytest.mark.slow

REFUND = ("refund", {"order": "78291", "amount": 899.0})
LOOK_UP = ("look_up", {"order": "78291"})
EMAIL = ("email", {"to": "ana@example.org"})


@pytest.fixture
async def stack(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a stack whose leases are as short as those of the processes."""
    quick = Store(store.conn.url, secrets=SECRETS, lease_ms=LEASE_MS)
    async with open_stack(quick, tmp_path / "checkpoints.db") as opened:
        yield opened
    await quick.close()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Give the place where the processes keep their threads, as the stack does."""
    return tmp_path / "checkpoints.db"


@pytest.mark.parametrize("is_decided", [True, False])
async def test_what_was_opened_for_an_answer_that_was_not_kept_never_runs(
    stack: Stack, checkpoints: Path, *, is_decided: bool
) -> None:
    """The model is asked again; the card of the first answer ends visibly."""
    async with worker(stack.store.conn.url, checkpoints, die_at="opened") as first:
        await stack.ask(REFUND, LOOK_UP)
        await killed(first)
    [lost] = await stack.items()
    if is_decided:
        await stack.decide(lost)
    assert not (await stack.runner.probe("t1")).pending

    async with worker(stack.store.conn.url, checkpoints):
        [asked] = await stack.asked()
        await stack.decide(asked)
        words = await stack.words()
        await stack.idle()

    assert words == "refunded 78291 899 | found 78291"
    assert sorted(line.split()[0] for line in sample_tools.ledger()) == [
        "look_up",
        "refund",
    ]
    ended = ItemState.LAPSED if is_decided else ItemState.SUPERSEDED
    assert await stack.states() == [ended, ItemState.EXECUTED]


@pytest.mark.parametrize("point", ["before_claim", "finished"])
async def test_a_kill_beside_the_tool_costs_nothing(
    stack: Stack, checkpoints: Path, point: str
) -> None:
    async with worker(stack.store.conn.url, checkpoints, die_at=point) as first:
        await stack.ask(REFUND, EMAIL)
        refund, email = await stack.asked(2)
        await stack.decide(refund)
        await killed(first)

    async with worker(stack.store.conn.url, checkpoints):
        await stack.decide(email)
        words = await stack.words()

    assert words == "refunded 78291 899 | mailed ana@example.org"
    assert sorted(line.split()[0] for line in sample_tools.ledger()) == [
        "email",
        "refund",
    ]


@pytest.mark.parametrize("point", ["claimed", "inside"])
async def test_a_kill_inside_the_tool_is_shown_and_reconciled_by_a_person(
    stack: Stack, checkpoints: Path, point: str
) -> None:
    async with worker(stack.store.conn.url, checkpoints, die_at=point) as first:
        await stack.ask(REFUND)
        [refund] = await stack.asked()
        await stack.decide(refund)
        await killed(first)
    effects = 1 if point == "inside" else 0

    async with worker(stack.store.conn.url, checkpoints):
        await eventually(lambda: _in_doubt(stack))
        await stack.idle()
        assert len(sample_tools.ledger()) == effects

        finding = Finding.EXECUTED if effects else Finding.RERUN
        [item] = await stack.items()
        await stack.decide(item, Reconcile(finding=finding))
        words = await stack.words()

    assert len(sample_tools.ledger()) == 1
    assert await stack.states() == [ItemState.EXECUTED]
    if finding is Finding.RERUN:
        assert words == "refunded 78291 899"
    assert len(await stack.events(EventName.ITEM_IN_DOUBT)) == 1


async def test_a_stop_lets_the_running_tool_finish(
    stack: Stack, checkpoints: Path
) -> None:
    async with worker(stack.store.conn.url, checkpoints) as process:
        await stack.ask(("slow", {"order": "1", "seconds": 1.0}))
        [slow] = await stack.asked()
        await stack.decide(slow)
        await eventually(_has_begun)

        process.send_signal(signal.SIGTERM)

        assert await asyncio.to_thread(process.wait, 20) == 0

    assert sample_tools.ledger() == ["begin 1", "end 1"]
    assert await stack.states() == [ItemState.EXECUTED]
    assert await stack.words() == "slow 1"


async def _in_doubt(stack: Stack) -> bool:
    state = await stack.runner.probe("t1")
    kinds = [str(one.value) for one in state.pending]
    return await stack.states() == [ItemState.IN_DOUBT] and any(
        "keyturn.reconcile" in kind for kind in kinds
    )


async def _has_begun() -> bool:
    return bool(sample_tools.ledger())
