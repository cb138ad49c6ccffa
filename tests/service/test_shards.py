"""Tenants on several shards: each has all of the product, and none disturbs another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from tests.conftest import eventually
from tests.service.harness import ANA, RULES
from tests.service.tenant_side import TENANTS, TenantSide
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import Approve, Decided, Reject
from twokey.gateway.approvals.events import EventName
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    Claimed,
    Refused,
)
from twokey.gateway.running import running
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.store.connection import Reply
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store


@pytest.fixture
async def sides(store: Store) -> AsyncGenerator[tuple[TenantSide, ...]]:
    spread = Store(store.conn.url, secrets=SECRETS, shards=3, lease_ms=2000)
    yield tuple(TenantSide(spread, tenant) for tenant in TENANTS)
    await spread.close()


Sides = tuple[TenantSide, TenantSide, TenantSide]


def test_the_tenants_are_on_three_shards(sides: Sides) -> None:
    assert [side.keys.shard for side in sides] == ["s0", "s1", "s2"]


async def test_each_tenant_has_the_whole_way_of_a_call_on_its_shard(
    sides: Sides,
) -> None:
    asked = await asyncio.gather(*(side.ask() for side in sides))

    for side, (click, claim) in zip(sides, asked, strict=True):
        assert f"_{side.keys.shard}_" in click.approval
        assert isinstance(await side.reviews.decide(click, Approve(), ANA), Decided)
        assert await side.store.queue(side.keys).depth() >= 1
        claimed = await side.agents.claim(claim)
        assert isinstance(claimed, Claimed)
        await side.agents.finish(claim.item_id, claimed.fence, Result(ok=True))
        ended = await side.approval(click.approval)
        assert ended.items[0].state is ItemState.EXECUTED
        # One of each: nothing of the other tenants stands in this shard.
        assert (await side.told()).count(EventName.ITEM_EXECUTED) == 1


async def test_nobody_decides_for_a_tenant_of_another_shard(sides: Sides) -> None:
    click, claim = await sides[0].ask()

    for other in sides[1:]:
        assert (await other.reviews.decide(click, Reject(), ANA)).kind == "unknown"
        assert isinstance(await other.agents.claim(claim), Refused)

    state = (await sides[0].approval(click.approval)).items[0].state
    assert state is ItemState.PENDING


async def test_one_sweep_ends_what_is_overdue_on_every_shard(sides: Sides) -> None:
    clicks = [(await side.ask())[0] for side in sides]
    for side, click in zip(sides, clicks, strict=True):
        await side.overdue(click.approval)

    assert await Sweeper(sides[0].store).sweep() == 3

    for side, click in zip(sides, clicks, strict=True):
        ended = await side.approval(click.approval)
        assert ended.items[0].state is ItemState.EXPIRED


async def test_a_freeze_stops_its_own_tenant_alone(sides: Sides) -> None:
    asked = [await side.ask() for side in sides]
    for side, (click, _) in zip(sides, asked, strict=True):
        await side.reviews.decide(click, Approve(), ANA)

    tenant = FreezeScope(kind=ScopeKind.TENANT)
    await sides[1].reviews.freezes.freeze(tenant, "T0/U0ANA", "wrong refunds")

    claims = [
        await side.agents.claim(claim)
        for side, (_, claim) in zip(sides, asked, strict=True)
    ]
    assert [type(one) for one in claims] == [Claimed, Refused, Claimed]


async def test_a_shard_that_hangs_does_not_stop_the_clock_of_the_others(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, waiting = sides[0].store, sides[2]
    click, _ = await waiting.ask()
    await waiting.overdue(click.approval)
    is_back = asyncio.Event()
    evalsha = store.conn.evalsha

    async def held_up(
        source: str, keys: Sequence[str], args: Any, **options: Any
    ) -> list[Reply]:
        # The node of the first shard is away: nothing of it is answered.
        if any("{s0}" in key for key in keys):
            await is_back.wait()
        return await evalsha(source, keys, args, **options)

    monkeypatch.setattr(store.conn, "evalsha", held_up)

    async def has_expired() -> bool:
        approval = await waiting.approval(click.approval)
        return approval.items[0].state is ItemState.EXPIRED

    async with running(store, lambda: RULES, {}, tenant="acme", grace_s=0.1):
        try:
            await eventually(has_expired, within_s=10)
        finally:
            is_back.set()


async def test_a_job_is_read_by_the_processes_of_its_tenant_alone(
    sides: Sides,
) -> None:
    first, other = sides[0], sides[2]
    click, _ = await first.ask()
    await first.reviews.decide(click, Approve(), ANA)
    before = await first.store.queue(first.keys).depth()
    other_click, _ = await other.ask()
    await other.reviews.decide(other_click, Approve(), ANA)

    async def has_looked() -> bool:
        # What nobody runs is put back for later, by whoever reads it.
        run = other.store.stalled
        return bool(await run.all(other.keys))

    async with running(
        other.store, lambda: RULES, {}, tenant=other.tenant, grace_s=0.1
    ):
        await eventually(has_looked)

    assert before >= 1
    assert await first.store.queue(first.keys).depth() == before
    assert await first.store.stalled.all(first.keys) == []
