"""A freeze of a tenant that is split reaches every shard before it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tests.conftest import eventually
from tests.patience import WAIT_S
from tests.service.away_shards import AwayShards
from tests.service.harness import ANA, RULES
from tests.service.test_split_tenant import AGENTS, SHARDS, Tenant
from tests.store_secrets import SECRETS
from tests.streams import audit_entries
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.approvals.events import BY_GATEWAY, EventName
from twokey.gateway.errors import FreezeIncomplete, StoreUnavailable
from twokey.gateway.protocol.wire import Claimed, ClaimRequest, Refused
from twokey.gateway.running import running
from twokey.gateway.service import split_freezes
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.split_freezes import SplitFreezes
from twokey.gateway.store.freezes import Freeze, FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)
REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
BILLING = FreezeScope(kind=ScopeKind.AGENT, name="billing")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for every shard that answers; those that are away say so at once here."""
    monkeypatch.setattr(split_freezes, "_READ_S", WAIT_S)
    monkeypatch.setattr(split_freezes, "_APPLY_S", WAIT_S)


@pytest.fixture
async def tenant(store: Store) -> AsyncGenerator[Tenant]:
    split = Store(
        store.conn.url, secrets=SECRETS, shards=SHARDS, lease_ms=2000, split=["default"]
    )
    yield Tenant(split)
    await split.close()


@pytest.fixture
def away(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> AwayShards:
    return AwayShards(tenant.store, monkeypatch)


async def approved(tenant: Tenant) -> list[ClaimRequest]:
    """Let each agent have an approved call; return their claims."""
    asked = [await tenant.ask(agent) for agent in AGENTS]
    for click, _ in asked:
        await tenant.reviews.decide(click, Approve(), ANA)
    return [claim for _, claim in asked]


async def shards_with(tenant: Tenant, scope: FreezeScope) -> int:
    """Return in how many shards something is frozen."""
    found = [
        await tenant.store.freezes.all(keys, "default")
        for keys in tenant.store.parts_of("default")
    ]
    return sum(any(one.name == str(scope) for one in freezes) for freezes in found)


async def told(tenant: Tenant) -> list[EventName]:
    """Return what all audit logs tell of freezes."""
    return [
        event.name
        for keys in tenant.store.parts_of("default")
        for event in await audit_entries(tenant.store.conn, keys)
        if event.name in {EventName.FREEZE_SET, EventName.FREEZE_LIFTED}
    ]


@pytest.mark.parametrize("scope", [EVERYTHING, REFUNDS], ids=str)
async def test_a_freeze_stops_the_approved_calls_of_every_agent(
    tenant: Tenant, scope: FreezeScope
) -> None:
    claims = await approved(tenant)
    freezes = FreezeService(tenant.store)

    assert await freezes.freeze(scope, "T0/U0ANA", "wrong refunds")
    replies = [await tenant.agents.claim(claim) for claim in claims]

    assert {type(one) for one in replies} == {Refused}
    assert not await freezes.freeze(scope, "T0/U0BEN", "later")
    [listed] = await freezes.frozen()
    assert (listed.by, listed.reason) == ("T0/U0ANA", "wrong refunds")
    assert await freezes.unfreeze(scope, "T0/U0ANA")
    assert not await freezes.unfreeze(scope, "T0/U0ANA")
    assert await freezes.frozen() == ()
    replies = [await tenant.agents.claim(claim) for claim in claims]
    assert {type(one) for one in replies} == {Claimed}
    # Told once, whatever the number of shards.
    assert await told(tenant) == [EventName.FREEZE_SET, EventName.FREEZE_LIFTED]


async def test_a_freeze_of_one_agent_stops_that_agent_alone(tenant: Tenant) -> None:
    claims = await approved(tenant)

    await tenant.reviews.freezes.freeze(BILLING, "T0/U0ANA", "why")

    replies = [await tenant.agents.claim(claim) for claim in claims]
    stopped = [isinstance(one, Refused) for one in replies]
    assert stopped == [agent == "billing" for agent in AGENTS]


@pytest.mark.parametrize("shard", [f"s{n}" for n in range(SHARDS)])
async def test_a_freeze_that_a_shard_lacks_is_not_acknowledged_and_spreads(
    tenant: Tenant, away: AwayShards, shard: str
) -> None:
    away.shards = {shard}
    freezes = FreezeService(tenant.store)

    with pytest.raises(FreezeIncomplete, match=r"frozen in 3 of 4 shards") as error:
        await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")

    assert error.value.missing == (shard,)
    assert f"{shard} did not answer" in str(error.value)
    await SplitFreezes(tenant.store).spread()
    away.shards = set()
    assert await shards_with(tenant, EVERYTHING) == SHARDS - 1
    await SplitFreezes(tenant.store).spread()
    assert await shards_with(tenant, EVERYTHING) == SHARDS
    # By whichever shard was away, it is told once, and stays in force as it was.
    assert not await freezes.freeze(EVERYTHING, "T0/U0BEN", "later")
    assert await told(tenant) == [EventName.FREEZE_SET]


async def test_to_say_it_again_makes_a_freeze_complete(
    tenant: Tenant, away: AwayShards
) -> None:
    away.shards, freezes = {"s1"}, FreezeService(tenant.store)
    with pytest.raises(FreezeIncomplete):
        await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
    with pytest.raises(FreezeIncomplete):
        await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
    away.shards = set()

    assert not await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")

    assert await shards_with(tenant, EVERYTHING) == SHARDS


async def test_a_freeze_that_no_shard_took_is_no_freeze(
    tenant: Tenant, away: AwayShards
) -> None:
    away.shards = {f"s{n}" for n in range(SHARDS)}

    with pytest.raises(StoreUnavailable, match="No shard") as error:
        await FreezeService(tenant.store).freeze(EVERYTHING, "T0/U0ANA", "why")

    assert not isinstance(error.value, FreezeIncomplete)
    away.shards = set()
    await SplitFreezes(tenant.store).spread()
    assert await shards_with(tenant, EVERYTHING) == 0


@pytest.mark.parametrize("shard", [f"s{n}" for n in range(SHARDS)])
async def test_the_end_of_a_freeze_that_a_shard_lacks_spreads_and_stays(
    tenant: Tenant, away: AwayShards, shard: str
) -> None:
    freezes = FreezeService(tenant.store)
    await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
    away.shards = {shard}

    with pytest.raises(FreezeIncomplete, match="do not start yet"):
        await freezes.unfreeze(EVERYTHING, "T0/U0ANA")

    away.shards = set()
    assert await shards_with(tenant, EVERYTHING) == 1
    # What one shard still has frozen does not come back in the others.
    await SplitFreezes(tenant.store).spread()
    assert await shards_with(tenant, EVERYTHING) == 0
    assert await told(tenant) == [EventName.FREEZE_SET, EventName.FREEZE_LIFTED]


async def test_a_freeze_and_its_end_are_both_told_though_their_shard_was_away(
    tenant: Tenant, away: AwayShards
) -> None:
    own = tenant.store.keys_of_tenant("default").shard
    away.shards, freezes = {own}, FreezeService(tenant.store)
    for change in (freezes.freeze, freezes.unfreeze):
        with pytest.raises(FreezeIncomplete):
            await change(EVERYTHING, "T0/U0ANA", "why")
    away.shards = set()

    await SplitFreezes(tenant.store).spread()

    assert await told(tenant) == [EventName.FREEZE_SET, EventName.FREEZE_LIFTED]
    assert await shards_with(tenant, EVERYTHING) == 0


async def test_a_freeze_that_was_lifted_does_not_come_back_from_a_paused_process(
    tenant: Tenant,
) -> None:
    freezes, changes = FreezeService(tenant.store), tenant.store.freeze_changes
    await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
    part = tenant.store.parts_of("default")[0]
    read = await changes.read(part, "default")
    await freezes.unfreeze(EVERYTHING, "T0/U0ANA")

    # It read the freeze before, and goes on now.
    for keys in tenant.store.parts_of("default"):
        change = read.changes[str(EVERYTHING)]
        await changes.apply(keys, "default", change, is_told=True)

    assert await shards_with(tenant, EVERYTHING) == 0


async def test_of_changes_at_one_moment_the_freeze_stands_in_every_shard(
    tenant: Tenant,
) -> None:
    both = [FreezeService(tenant.store) for _ in range(2)]
    for n in range(10):
        await asyncio.gather(
            both[0].freeze(EVERYTHING, "T0/U0ANA", f"a{n}"),
            both[1].freeze(EVERYTHING, "T0/U0BEN", f"b{n}"),
        )
        frozen = [
            await tenant.store.freezes.all(keys, "default")
            for keys in tenant.store.parts_of("default")
        ]
        await SplitFreezes(tenant.store).spread()
        [listed] = await both[0].frozen()
        assert [one for [one] in frozen] == [listed] * SHARDS
        await asyncio.gather(*(one.unfreeze(EVERYTHING, "T0/U0ANA") for one in both))
        assert await shards_with(tenant, EVERYTHING) == 0


async def test_an_agents_pause_ends_on_its_shard(tenant: Tenant) -> None:
    keys = tenant.store.keys_of_agent("default", "billing")
    pause = Freeze(scope=BILLING, by="gateway", reason="10", at_ms=1, is_pause=True)
    await tenant.store.conn.command(
        "HSET", keys.frozen("default"), pause.name, pause.model_dump_json()
    )
    freezes = FreezeService(tenant.store)
    [listed] = await freezes.frozen()
    assert listed.is_pause

    assert await freezes.unfreeze(BILLING, "T0/U0ANA")

    assert await freezes.frozen() == ()


async def test_a_pause_that_begins_after_its_end_was_said_stays(
    tenant: Tenant, away: AwayShards
) -> None:
    keys = tenant.store.keys_of_agent("default", "billing")
    freezes = FreezeService(tenant.store)
    await freezes.freeze(BILLING, "T0/U0ANA", "why")
    away.shards = {keys.shard}
    with pytest.raises(FreezeIncomplete):
        await freezes.unfreeze(BILLING, "T0/U0ANA")
    away.shards = set()
    reason = "10 of its calls were rejected in a row"
    later = Freeze(
        scope=BILLING, by=BY_GATEWAY, reason=reason, at_ms=2**45, is_pause=True
    )
    await tenant.store.conn.command(
        "HSET", keys.frozen("default"), later.name, later.model_dump_json()
    )

    await SplitFreezes(tenant.store).spread()

    assert await freezes.frozen() == (later,)


async def test_a_gateway_makes_a_freeze_complete(
    tenant: Tenant, away: AwayShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twokey.gateway.running.SPREAD_S", 0.02)
    away.shards = {"s3"}
    with pytest.raises(FreezeIncomplete):
        await FreezeService(tenant.store).freeze(EVERYTHING, "T0/U0ANA", "why")

    async def is_whole() -> bool:
        return await shards_with(tenant, EVERYTHING) == SHARDS

    away.shards = set()
    async with running(tenant.store, lambda: RULES, {}, grace_s=0.1):
        await eventually(is_whole)
