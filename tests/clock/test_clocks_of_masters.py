"""Masters of a cluster whose clocks differ by hours: each is asked for its own time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot

from tests.clock import faketime
from tests.conftest import eventually
from tests.service.harness import ANA
from tests.service.test_split_tenant import AGENTS, SHARDS, Tenant
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, programs
from twokey.gateway.approvals.decisions import Approve, Decided
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Claimed, Refused
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.queue import ReviewQueue
from twokey.gateway.service.split_freezes import SplitFreezes
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]

EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)
HOUR_S = 3600
SHORT = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 1s, channel: C0APPROVALS, reviewers: support}
roles: {support: {users: [U0ANA]}}
tools: {process_refund: {tier: approve}}
""",
    "policy.yml",
)


@asynccontextmanager
async def tenant_of(
    folder: Path, *ahead_s: int
) -> AsyncGenerator[tuple[Tenant, Cluster]]:
    """Start a cluster whose masters are so far ahead, and a tenant that is split."""
    try:
        library = faketime.library()
    except faketime.NoFaketime as missing:
        pytest.fail(str(missing), pytrace=False)
    # Debian's Redis does not start under libfaketime.
    cluster = Cluster(programs()["valkey"], folder)
    for node, seconds in zip(cluster.nodes, ahead_s, strict=True):
        node.env = {
            "LD_PRELOAD": library,
            "FAKETIME": f"{seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    with cluster:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        store = Store(cluster.url, secrets=SECRETS, shards=SHARDS, split=["default"])
        try:
            yield Tenant(store), cluster
        finally:
            await store.close()


def elsewhere(tenant: Tenant, cluster: Cluster) -> Callable[[str], bool]:
    """Return whether an agent's runs are on another master than that of slot 0."""

    def is_elsewhere(agent: str) -> bool:
        keys = tenant.store.keys_of_agent("default", agent)
        slot = key_slot(keys.expiry.encode())
        return cluster.master_of(slot) is not cluster.master_of(0)

    return is_elsewhere


async def ids_by_shard(tenant: Tenant) -> dict[str, Keys]:
    """Let each agent ask; return the approvals with their shards."""
    asked = [(agent, (await tenant.ask(agent))[0]) for agent in AGENTS]
    return {
        click.approval: tenant.store.keys_of_agent("default", agent)
        for agent, click in asked
    }


async def test_nothing_is_swept_before_its_time_by_the_clock_of_another_master(
    tmp_path: Path,
) -> None:
    # What is kept for an hour was over long ago by the clock of slot 0.
    async with tenant_of(tmp_path, 2 * HOUR_S, 0, 0) as (tenant, _):
        approvals = await ids_by_shard(tenant)
        before = {one: (await tenant.approval(one)).rev for one in approvals}

        for _ in range(3):
            assert await Sweeper(tenant.store).sweep() == 0

        after = {one: (await tenant.approval(one)).rev for one in approvals}
        assert after == before
        listed = [one.approval.id async for one in ReviewQueue(tenant.store).waiting()]
        assert {*listed} == {*approvals}


async def test_what_is_overdue_ends_in_time_though_the_clock_of_slot_0_is_behind(
    tmp_path: Path,
) -> None:
    async with tenant_of(tmp_path, -2 * HOUR_S, 0, 0) as (
        tenant,
        cluster,
    ):
        tenant.agents = AgentService(tenant.store, lambda: SHORT)
        agent = next(filter(elsewhere(tenant, cluster), AGENTS))
        click, _ = await tenant.ask(agent)
        keys = tenant.store.keys_of_agent("default", agent)

        async def has_ended() -> bool:
            await Sweeper(tenant.store).sweep_shard(keys)
            items = (await tenant.approval(click.approval)).items
            return items[0].state is ItemState.EXPIRED

        await eventually(has_ended)


async def test_time_goes_on_in_other_shards_while_the_master_of_slot_0_is_away(
    tmp_path: Path,
) -> None:
    async with tenant_of(tmp_path, 0, 0, 0) as (tenant, cluster):
        tenant.agents = AgentService(tenant.store, lambda: SHORT)
        agent = next(filter(elsewhere(tenant, cluster), AGENTS))
        click, _ = await tenant.ask(agent)
        keys = tenant.store.keys_of_agent("default", agent)
        cluster.master_of(0).kill()

        async def has_ended() -> bool:
            await Sweeper(tenant.store).sweep_shard(keys)
            items = (await tenant.approval(click.approval)).items
            return items[0].state is ItemState.EXPIRED

        await eventually(has_ended)


@pytest.mark.parametrize(
    "ahead_s", [(300, 0, -300), (-300, 300, 0), (0, -300, 300)], ids=str
)
async def test_calls_run_and_freezes_hold_on_masters_minutes_apart(
    tmp_path: Path, ahead_s: tuple[int, int, int]
) -> None:
    async with tenant_of(tmp_path, *ahead_s) as (tenant, _):
        freezes = FreezeService(tenant.store)
        asked = [await tenant.ask(agent) for agent in AGENTS]
        for click, _ in asked:
            decided = await tenant.reviews.decide(click, Approve(), ANA)
            assert isinstance(decided, Decided)

        for _ in range(3):
            assert await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
            for _, claim in asked:
                assert isinstance(await tenant.agents.claim(claim), Refused)
            await SplitFreezes(tenant.store).spread()
            seen = await freezes.look()
            assert ([one.reason for one in seen.freezes], seen.incomplete) == (
                ["why"],
                (),
            )
            assert await freezes.unfreeze(EVERYTHING, "T0/U0ANA")
            await SplitFreezes(tenant.store).spread()
            assert await freezes.frozen() == ()

        for _, claim in asked:
            assert isinstance(await tenant.agents.claim(claim), Claimed)
