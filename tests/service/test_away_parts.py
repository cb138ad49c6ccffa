"""Lists of a tenant that is split name the shards that they leave out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tests.patience import WAIT_S
from tests.service.away_shards import AwayShards
from tests.service.harness import ANA
from tests.service.test_split_tenant import AGENTS, SHARDS, Tenant
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import Click, Reject
from twokey.gateway.errors import AuditUnreadable, FreezeIncomplete, StoreUnavailable
from twokey.gateway.service import away_parts
from twokey.gateway.service.away_parts import AwayParts, of_each
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.past import PastDecisions
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)


@pytest.fixture
async def tenant(store: Store) -> AsyncGenerator[Tenant]:
    split = Store(
        store.conn.url, secrets=SECRETS, shards=SHARDS, lease_ms=2000, split=["default"]
    )
    yield Tenant(split)
    await split.close()


@pytest.fixture
def away(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> AwayShards:
    monkeypatch.setattr(away_parts, "ANSWERS_WITHIN_S", 0.2)
    return AwayShards(tenant.store, monkeypatch)


def left_out(tenant: Tenant) -> AwayParts:
    return AwayParts(tenant.store.parts_of("default"))


def there(clicks: list[Click], shard: str) -> set[str]:
    """Return the approvals that are not in a shard."""
    return {one.approval for one in clicks if f"_{shard}_" not in one.approval}


def some_shard(tenant: Tenant) -> str:
    """Return a shard that has runs and is not the tenant's own."""
    own = tenant.store.keys_of_tenant("default").shard
    of_agents = [tenant.store.keys_of_agent("default", one).shard for one in AGENTS]
    return next(one for one in of_agents if one != own)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_queue_has_what_is_there_and_names_the_shard_that_is_away(
    tenant: Tenant, away: AwayShards, *, hangs: bool
) -> None:
    clicks = [(await tenant.ask(agent))[0] for agent in AGENTS]
    gone = some_shard(tenant)
    away.shards, away.hangs = {gone}, hangs
    queue, found = tenant.reviews.queue, left_out(tenant)

    async with asyncio.timeout(WAIT_S):
        waiting = [one.approval.id async for one in queue.waiting(away=found)]
    mine = [one.approval.id async for one in queue.concerning([ANA], away=found)]
    groups = await queue.groups(away=found)
    short = [
        loaded.approval.id
        for click in clicks
        for loaded in await queue.read_short(
            click.approval.rpartition("_")[2][:8], away=found
        )
    ]

    rest = there(clicks, gone)
    assert 0 < len(rest) < len(clicks)
    assert {*waiting} == {*mine} == {*short} == rest
    assert groups == frozenset()
    assert found.shards == {gone}


async def test_a_shard_that_hangs_is_waited_for_once_in_a_look(
    tenant: Tenant, away: AwayShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    for agent in AGENTS:
        await tenant.ask(agent)
    away.shards, away.hangs = {some_shard(tenant)}, True
    found, asked = left_out(tenant), 0
    look = away.look

    async def counting(key: str) -> None:
        nonlocal asked
        asked += any(f"{{{shard}}}" in key for shard in away.shards)
        await look(key)

    monkeypatch.setattr(away, "look", counting)
    for _ in range(3):
        async with asyncio.timeout(WAIT_S):
            assert [one async for one in tenant.reviews.queue.waiting(away=found)]

    assert asked == 1


async def test_the_log_of_decisions_names_the_shard_that_is_away(
    tenant: Tenant, away: AwayShards
) -> None:
    clicks = [(await tenant.ask(agent))[0] for agent in AGENTS]
    for click in clicks:
        await tenant.reviews.decide(click, Reject(), ANA)
    gone = some_shard(tenant)
    away.shards, found = {gone}, left_out(tenant)
    past = PastDecisions(tenant.store)

    rows = [event.approval async for event, _ in past.newest(away=found)]

    assert {*rows} == there(clicks, gone)
    assert found.shards == {gone}


async def test_who_must_not_leave_anything_out_gets_an_error(
    tenant: Tenant, away: AwayShards
) -> None:
    away.shards = {some_shard(tenant)}
    queue = tenant.reviews.queue

    with pytest.raises(StoreUnavailable):
        await tenant.reviews.waiting()
    with pytest.raises(StoreUnavailable):
        _ = [one async for one in queue.concerning([ANA])]
    with pytest.raises(StoreUnavailable):
        await tenant.reviews.statistics.metrics()
    with pytest.raises(StoreUnavailable):
        await tenant.reviews.was_asked("m")


async def test_the_tenants_own_shard_is_never_left_out(
    tenant: Tenant, away: AwayShards
) -> None:
    away.shards, found = (
        {tenant.store.keys_of_tenant("default").shard},
        left_out(tenant),
    )

    with pytest.raises(StoreUnavailable):
        _ = [one async for one in tenant.reviews.queue.waiting(away=found)]


async def test_a_damaged_audit_log_is_not_taken_for_a_shard_that_is_away(
    tenant: Tenant,
) -> None:
    async def read(_: Keys) -> None:
        raise AuditUnreadable("A segment is missing.")

    found = left_out(tenant)
    with pytest.raises(AuditUnreadable):
        await of_each(tenant.store.parts_of("default")[1:], read, found)
    assert found.shards == set()


async def test_an_incomplete_freeze_is_listed_with_the_shards_that_lack_it(
    tenant: Tenant, away: AwayShards
) -> None:
    freezes = FreezeService(tenant.store)
    away.shards = {"s1", "s3"}
    with pytest.raises(FreezeIncomplete):
        await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")

    seen = await freezes.look()
    with pytest.raises(StoreUnavailable, match="s1, s3 of 4 shards"):
        await freezes.frozen()
    away.shards = {"s3"}
    lacked = await freezes.look()
    away.shards = set()
    both = await freezes.look()

    assert ({*seen.away}, seen.incomplete) == ({"s1", "s3"}, ())
    assert [one.reason for one in seen.freezes] == ["why"]
    assert (lacked.away, [one.lacking for one in lacked.incomplete]) == (
        ("s3",),
        [("s1",)],
    )
    [one] = both.incomplete
    assert (one.name, one.is_set, {*one.lacking}) == ("tenant", True, {"s1", "s3"})
    assert not await freezes.freeze(EVERYTHING, "T0/U0ANA", "again")
    assert (await freezes.look()).incomplete == ()


async def test_an_incomplete_end_of_a_freeze_is_listed(
    tenant: Tenant, away: AwayShards
) -> None:
    freezes = FreezeService(tenant.store)
    await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
    away.shards = {"s2"}
    with pytest.raises(FreezeIncomplete):
        await freezes.unfreeze(EVERYTHING, "T0/U0ANA")
    away.shards = set()

    [one] = (await freezes.look()).incomplete

    assert (one.name, one.is_set, one.lacking) == ("tenant", False, ("s2",))


async def test_a_shard_that_hangs_keeps_a_freeze_from_no_other(
    tenant: Tenant, away: AwayShards
) -> None:
    away.shards, away.hangs = {"s2"}, True

    with pytest.raises(FreezeIncomplete) as error:
        async with asyncio.timeout(WAIT_S):
            await FreezeService(tenant.store).freeze(EVERYTHING, "T0/U0ANA", "why")

    assert error.value.missing == ("s2",)
    away.shards = set()
    [one] = (await FreezeService(tenant.store).look()).incomplete
    assert one.lacking == ("s2",)
