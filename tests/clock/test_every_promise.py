"""However the server's clock moves, whatever state a call is in: each promise holds."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.clock.conftest import Clock
from tests.clock.test_kept_while_needed import (
    JUMPS,
    LONG,
    OPEN,
    Made,
    Prepare,
    approved,
    carded,
    doubted,
    nothing,
    ran,
)
from tests.lifetimes import wrong_lifetimes
from tests.service.desk import ANA, BEN, EVE, Desk, person
from twokey.gateway.approvals.decisions import Approve, Reconcile
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.protocol.wire import Claimed, ClaimRequest
from twokey.gateway.store.store import Store

DAN = person("U0DAN")
"""Who asked for it."""

MOVES = [
    *[(timedelta(days=days),) for days in JUMPS],
    (timedelta(hours=2), timedelta(hours=-2)),
    (timedelta(hours=-2), timedelta(hours=2)),
]


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store, LONG)


async def moved(desk: Desk, clock: Clock, moves: tuple[timedelta, ...]) -> None:
    """Move the clock; the gateway looks at it after each move, and again."""
    for move in moves:
        clock.move(hours=move.total_seconds() / 3600)
        await desk.sweeper.sweep()
        await desk.sweeper.sweep()
        assert await wrong_lifetimes(desk.store.conn) == []


async def state_of(desk: Desk, made: Made) -> ItemState | None:
    """Return the state of the call; None when it ended and is forgotten."""
    found = await desk.reviews.read(made[0].approval)
    return found.approval.items[0].state if found else None


async def claims(desk: Desk, *requests: ClaimRequest) -> int:
    """Let several claim at once; return how many may run the call."""
    replies = await asyncio.gather(*(desk.agents.claim(one) for one in requests))
    return sum(isinstance(one, Claimed) for one in replies)


@pytest.mark.parametrize("moves", MOVES, ids=[*map(str, JUMPS), "forth", "back"])
@pytest.mark.parametrize(
    "prepare", [nothing, approved, doubted, ran], ids=lambda one: one.__name__
)
async def test_every_promise_holds(
    desk: Desk, clock: Clock, prepare: Prepare, moves: tuple[timedelta, ...]
) -> None:
    made = await carded(desk)
    await prepare(desk, made)
    click, claim = made
    before, jobs = await desk.item(claim.item_id), await desk.jobs()

    await moved(desk, clock, moves)
    state = await state_of(desk, made)

    # Nothing that was open is lost, and what time ended is told to its thread.
    assert state is not None or before.state not in OPEN
    if state is not None and state is not before.state:
        assert state in {ItemState.EXPIRED, ItemState.LAPSED}
        assert await desk.jobs() > jobs

    # Neither who asked nor a stranger decides, and time approves nothing.
    for who in (DAN, EVE):
        for decision in (Approve(), Reconcile(finding=Finding.RERUN)):
            outcome = await desk.reviews.decide(click, decision, who)
            assert outcome.kind != "settled"
    assert await state_of(desk, made) is state

    # Only what was approved runs, as it was shown, and at no lower tier.
    forged = claim.with_(tool="look_up_order")
    assert await claims(desk, forged) == 0
    if state is not ItemState.AUTHORIZED:
        assert await claims(desk, claim) == 0
    if state is not None:
        now = await desk.item(claim.item_id)
        assert now.action == before.action
        assert list(Tier).index(now.tier) >= list(Tier).index(before.tier)

    # One decision wins, and one authorization runs the call once.
    both = [desk.reviews.decide(click, Approve(), who) for who in (ANA, BEN)]
    settled = [one for one in await asyncio.gather(*both) if one.kind == "settled"]
    assert len(settled) == (state is ItemState.PENDING)
    runs = await claims(desk, claim, claim.with_(owner="worker-2"))
    assert runs == (state in {ItemState.PENDING, ItemState.AUTHORIZED})
    assert await claims(desk, claim.with_(owner="worker-3")) == 0


async def test_every_wait_ends_however_long_nobody_looks(
    desk: Desk, clock: Clock
) -> None:
    ends: list[ItemState] = []
    for prepare in (nothing, approved):
        made = await carded(desk)
        await prepare(desk, made)
        clock.move(days=31)
        await desk.sweeper.sweep()
        ends.append((await desk.item(made[1].item_id)).state)
        await desk.sweeper.sweep()

    assert ends == [ItemState.EXPIRED, ItemState.LAPSED]
    assert await desk.jobs() >= len(ends)
