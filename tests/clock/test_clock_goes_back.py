"""A clock that goes forth and back loses nothing, and delays no one."""

from __future__ import annotations

import secrets

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.wire import Busy, Claimed, ClaimRequest, InDoubt
from keyturn.gateway.store.store import Store
from tests.clock.conftest import Clock
from tests.service.harness import ANA, ServiceHarness


async def started(harness: ServiceHarness) -> tuple[Click, ClaimRequest, Claimed]:
    """Begin a refund."""
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    claimed = await harness.agents.claim(claim)
    assert isinstance(claimed, Claimed)
    return click, claim, claimed


async def test_an_early_end_is_final(harness: ServiceHarness, clock: Clock) -> None:
    click, claim = await harness.refund()
    clock.move(hours=2)
    assert await harness.sweeper.sweep() == 1
    clock.move(hours=-2)
    await harness.sweeper.sweep()

    assert (await harness.item(claim.item_id)).state is ItemState.EXPIRED
    assert (await harness.reviews.decide(click, Approve(), ANA)).kind == "expired"
    assert not isinstance(await harness.agents.claim(claim), Claimed)


async def test_a_dead_owners_lease_ends(harness: ServiceHarness, clock: Clock) -> None:
    _, claim, _ = await started(harness)
    other = claim.with_(owner="worker-2")
    clock.move(hours=-2)

    assert isinstance(await harness.agents.claim(other), Busy)
    clock.move(minutes=1)

    assert isinstance(await harness.agents.claim(other), InDoubt)


async def test_a_live_owner_keeps_a_call(harness: ServiceHarness, clock: Clock) -> None:
    _, claim, claimed = await started(harness)
    clock.move(hours=-2)

    assert isinstance(await harness.agents.claim(claim.with_(owner="worker-2")), Busy)
    assert await harness.agents.heartbeat(claim.item_id, claimed.fence)
    result = Result(ok=True, summary="done")
    assert await harness.agents.finish(claim.item_id, claimed.fence, result)


async def test_a_dead_holder_loses_its_thread(store: Store, clock: Clock) -> None:
    keys = store.keys_of_tenant("default")
    place = keys, "support", "t1"
    async with store.threads.lease(*place):
        # The trace of a killed process: the lease under a token without renewals.
        lease = keys.lease("support", "t1")
        await store.conn.command("HSET", lease, "token", secrets.token_hex(16))
    clock.move(hours=-2)

    with pytest.raises(ThreadUnavailable):
        async with store.threads.lease(*place):
            pass
    clock.move(minutes=1)

    async with store.threads.lease(*place):
        pass
