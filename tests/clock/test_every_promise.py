"""For any move of the server's clock and any state of a call, each promise holds."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from keyturn.gateway.approvals.decisions import Approve, Reconcile
from keyturn.gateway.protocol.records import Finding, ItemState, Tier
from keyturn.gateway.protocol.wire import Claimed, ClaimRequest
from keyturn.gateway.store.store import Store
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
from tests.service.harness import ANA, BEN, EVE, ServiceHarness, person

DAN = person("U0DAN")
"""Who asked for it."""

MOVES = [
    *[(timedelta(days=days),) for days in JUMPS],
    (timedelta(hours=2), timedelta(hours=-2)),
    (timedelta(hours=-2), timedelta(hours=2)),
    (timedelta(hours=-26),),
]


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, LONG)


async def moved(
    harness: ServiceHarness, clock: Clock, moves: tuple[timedelta, ...]
) -> None:
    """Move the clock; the gateway looks at it after each move, and again."""
    for move in moves:
        clock.move(hours=move.total_seconds() / 3600)
        await harness.sweeper.sweep()
        await harness.sweeper.sweep()
        assert await wrong_lifetimes(harness.store.conn) == []


async def state_of(harness: ServiceHarness, made: Made) -> ItemState | None:
    """Return the state of the call; None when it ended and is forgotten."""
    found = await harness.reviews.read(made[0].approval)
    return found.approval.items[0].state if found else None


async def claims(harness: ServiceHarness, *requests: ClaimRequest) -> int:
    """Claim from several processes at once; return how many may run the call."""
    replies = await asyncio.gather(*(harness.agents.claim(one) for one in requests))
    return sum(isinstance(one, Claimed) for one in replies)


@pytest.mark.parametrize(
    "moves", MOVES, ids=[*map(str, JUMPS), "forth", "back", "stays back"]
)
@pytest.mark.parametrize(
    "prepare", [nothing, approved, doubted, ran], ids=lambda one: one.__name__
)
async def test_every_promise_holds(
    harness: ServiceHarness,
    clock: Clock,
    prepare: Prepare,
    moves: tuple[timedelta, ...],
) -> None:
    made = await carded(harness)
    await prepare(harness, made)
    click, claim = made
    before, jobs = await harness.item(claim.item_id), await harness.jobs()

    await moved(harness, clock, moves)
    state = await state_of(harness, made)

    # No open call is lost, and the thread learns of calls that expired.
    assert state is not None or before.state not in OPEN
    if state is not None and state is not before.state:
        assert state in {ItemState.EXPIRED, ItemState.LAPSED}
        assert await harness.jobs() > jobs

    # Neither the requester nor a stranger decides, and time approves nothing.
    for who in (DAN, EVE):
        for decision in (Approve(), Reconcile(finding=Finding.RERUN)):
            outcome = await harness.reviews.decide(click, decision, who)
            assert outcome.kind != "decided"
    assert await state_of(harness, made) is state

    # Only approved calls run, as they were shown, and at no lower tier.
    forged = claim.with_(tool="look_up_order")
    assert await claims(harness, forged) == 0
    if state is not ItemState.AUTHORIZED:
        assert await claims(harness, claim) == 0
    if state is not None:
        now = await harness.item(claim.item_id)
        assert now.action == before.action
        assert list(Tier).index(now.tier) >= list(Tier).index(before.tier)

    # One decision wins, and one authorization runs the call once.
    both = [harness.reviews.decide(click, Approve(), who) for who in (ANA, BEN)]
    decided = [one for one in await asyncio.gather(*both) if one.kind == "decided"]
    assert len(decided) == (state is ItemState.PENDING)
    runs = await claims(harness, claim, claim.with_(owner="worker-2"))
    assert runs == (state in {ItemState.PENDING, ItemState.AUTHORIZED})
    assert await claims(harness, claim.with_(owner="worker-3")) == 0


async def test_every_wait_ends_at_last(harness: ServiceHarness, clock: Clock) -> None:
    ends: list[ItemState] = []
    for prepare in (nothing, approved):
        made = await carded(harness)
        await prepare(harness, made)
        clock.move(days=31)
        await harness.sweeper.sweep()
        ends.append((await harness.item(made[1].item_id)).state)
        await harness.sweeper.sweep()

    assert ends == [ItemState.EXPIRED, ItemState.LAPSED]
    assert await harness.jobs() >= len(ends)
