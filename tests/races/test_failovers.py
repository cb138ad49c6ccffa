"""Masters, replicas and Sentinels die in the middle of decisions; none is lost."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.service.harness import ANA, TENANTS, ServiceHarness
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, Node, SentinelSet, Topology, until

pytestmark = [pytest.mark.xdist_group("topologies")]

DECISIONS = size(deep=2500, short=100)
DECIDERS = 8
SEED = 11

Found = TypeVar("Found")


class Kills:
    """Kills nodes one after the other, and starts each again."""

    def __init__(self, whole: Topology, master: Callable[[], Node]) -> None:
        self._whole, self._master = whole, master
        self._random = random.Random(SEED)  # noqa: S311 - chooses what dies
        self.killed = 0

    async def go_on(self) -> None:
        """Kill until this is cancelled; a begun kill is completed."""
        while True:
            # In a thread: it waits for processes, while decisions go on.
            one = asyncio.create_task(asyncio.to_thread(self.kill_one))
            try:
                await asyncio.shield(one)
            except asyncio.CancelledError:
                # Else it waits, for a minute, for nodes that the end of the test stops.
                await one
                raise

    def kill_one(self) -> Node:
        """Kill a master, or else any node; return it when all is whole again."""
        # Every second time a master: it is what a failover is about.
        is_master = self.killed % 2 == 0
        node = self._master() if is_master else self._random.choice(self._whole.nodes)
        node.kill()
        self.killed += 1
        if is_master:
            until(lambda: self._master() is not node, "another master is there")
        node.start()
        until(self._whole.is_whole, "all of it is whole again")
        return node


async def acknowledged(work: Callable[[], Awaitable[Found]]) -> Found:
    """Do something until the store acknowledges it."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def decide_one(side: ServiceHarness, thread: str) -> str:
    """Submit a call, and approve it until that is acknowledged; return its id."""
    click, _ = await acknowledged(lambda: side.refund(thread=thread))
    await acknowledged(lambda: side.reviews.decide(click, Approve(), ANA))
    return click.approval


async def decided(
    sides: Sequence[ServiceHarness], count: int
) -> dict[str, ServiceHarness]:
    """Request this many approvals and approve each; return the acknowledged ones."""
    told: dict[str, ServiceHarness] = {}
    numbers = iter(range(count))

    async def decider() -> None:
        for number in numbers:
            side = sides[number % len(sides)]
            told[await decide_one(side, f"t{number}")] = side

    await asyncio.gather(*(decider() for _ in range(DECIDERS)))
    return told


async def nothing_is_lost(store: Store, kills: Kills) -> None:
    """Decide while nodes are killed; compare the acknowledgements with the store."""
    await ensure_durable(store.conn)
    sides = [ServiceHarness(store, tenant=tenant) for tenant in TENANTS]
    killing = asyncio.create_task(kills.go_on())
    try:
        told = await decided(sides, DECISIONS)
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)

    assert len(told) == DECISIONS
    for approval_id, side in told.items():
        item = await side.item(f"{approval_id}.0")
        assert item.state is ItemState.AUTHORIZED, approval_id
        assert [vote.by.user for vote in item.votes] == ["U0ANA"]
    for side in sides:
        authorized = await side.audited(EventName.ITEM_AUTHORIZED)
        counted = Counter(one.item for one in authorized)
        assert set(counted.values()) <= {1}
    assert kills.killed
    await store.close()


async def test_a_sentinels_failover_loses_nothing(sentinel_set: SentinelSet) -> None:
    store = Store(sentinel_set.url, secrets=SECRETS, lease_ms=2000)

    await nothing_is_lost(store, Kills(sentinel_set, sentinel_set.master))


async def test_a_clusters_failover_loses_nothing(replicated_cluster: Cluster) -> None:
    store = Store(replicated_cluster.url, secrets=SECRETS, lease_ms=2000)
    slots = itertools.cycle([0, 6000, 12000])
    kills = Kills(replicated_cluster, lambda: replicated_cluster.master_of(next(slots)))

    await nothing_is_lost(store, kills)
