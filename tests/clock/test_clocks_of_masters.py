"""Masters of a cluster whose clocks differ by hours: each is asked for its time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot

from keyturn.gateway.approvals.decisions import Approve, Decided
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Claimed, Refused
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.clock import faketime
from tests.conftest import eventually
from tests.service.harness import ANA, TENANTS, ServiceHarness
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, Node, programs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]

EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)
HOUR_S = 3600
SHORT = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 1s, channel: C0APPROVALS, needs: support}
roles: {support: {users: [U0ANA]}}
tools: {process_refund: {tier: approve}}
""",
    "policy.yml",
)


@asynccontextmanager
async def sides_on(
    folder: Path, *ahead_s: int
) -> AsyncGenerator[tuple[list[ServiceHarness], Cluster]]:
    """Start a cluster whose masters are so far ahead, with a tenant on each of them."""
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
        store = Store(cluster.url, secrets=SECRETS)
        try:
            yield [ServiceHarness(store, tenant=tenant) for tenant in TENANTS], cluster
        finally:
            await store.close()


def master_of(cluster: Cluster, side: ServiceHarness) -> Node:
    """Return the master that has a tenant's keys."""
    return cluster.master_of(key_slot(side.keys.expiry.encode()))


def elsewhere(sides: list[ServiceHarness], cluster: Cluster) -> ServiceHarness:
    """Return a tenant on another master than that of slot 0."""
    zero = cluster.master_of(0)
    return next(one for one in sides if master_of(cluster, one) is not zero)


async def test_another_masters_clock_sweeps_nothing(tmp_path: Path) -> None:
    # By the clock of slot 0, a value with a lifetime of an hour has long expired.
    async with sides_on(tmp_path, 2 * HOUR_S, 0, 0) as (sides, cluster):
        assert len({master_of(cluster, one).port for one in sides}) == len(TENANTS)
        for side in sides:
            click, claim = await side.refund()
            before = (await side.approval(claim.item_id)).rev

            for _ in range(3):
                assert await side.sweeper.sweep() == 0

            assert (await side.approval(claim.item_id)).rev == before
            waiting = side.reviews.queue.waiting()
            assert [one.approval.id async for one in waiting] == [click.approval]


async def has_ended_in_time(side: ServiceHarness) -> None:
    """Let a call with a short time stay pending until it has expired."""
    side.policy = SHORT
    _, claim = await side.refund()

    async def has_ended() -> bool:
        await side.sweeper.sweep()
        return (await side.item(claim.item_id)).state is ItemState.EXPIRED

    await eventually(has_ended)


async def test_a_slow_slot_0_delays_no_end(tmp_path: Path) -> None:
    async with sides_on(tmp_path, -2 * HOUR_S, 0, 0) as (sides, cluster):
        await has_ended_in_time(elsewhere(sides, cluster))


async def test_time_goes_on_without_slot_0(tmp_path: Path) -> None:
    async with sides_on(tmp_path, 0, 0, 0) as (sides, cluster):
        side = elsewhere(sides, cluster)
        await side.refund(thread="before")
        cluster.master_of(0).kill()

        await has_ended_in_time(side)


@pytest.mark.parametrize("ahead_s", [(300, 0, -300), (0, -300, 300)], ids=str)
async def test_calls_run_and_freezes_hold_on_masters_minutes_apart(
    tmp_path: Path, ahead_s: tuple[int, int, int]
) -> None:
    async with sides_on(tmp_path, *ahead_s) as (sides, _):
        for side in sides:
            freezes = side.reviews.freezes
            click, claim = await side.refund()
            assert isinstance(await side.reviews.decide(click, Approve(), ANA), Decided)

            assert await freezes.freeze(EVERYTHING, "T0/U0ANA", "why")
            assert isinstance(await side.agents.claim(claim), Refused)
            assert [one.reason for one in await freezes.frozen()] == ["why"]
            assert await freezes.unfreeze(EVERYTHING, "T0/U0ANA")
            assert await freezes.frozen() == ()

            assert isinstance(await side.agents.claim(claim), Claimed)
