"""What was precomputed on one master is decided, once, by whichever has its shard then.

Nothing of a click is lost that was acknowledged, and nothing counts twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import cast

import pytest
from redis.crc import key_slot

from tests.races.test_failovers import acknowledged
from tests.service.harness import ANA, BEN, DAN, RULES
from tests.service.held_calls import held_call, read
from tests.store_secrets import SECRETS
from tests.streams import audit_entries
from tests.topologies import Cluster, Node, SentinelSet, until
from twokey.gateway.approvals.decisions import Approve, Click, Decided, Gesture
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Item
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import ClaimRequest, TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store import connection
from twokey.gateway.store.durability import ensure_durable
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("topologies"),
    pytest.mark.parametrize("server_program", ["valkey"], indirect=True),
]

TENANT, AGENTS = "vandelay", ("support", "billing", "travel")
PRESSED = ANA.with_(gesture=Gesture.BUTTON)
REQUEST = "sha256:" + "a" * 64


@dataclass
class Side:
    """One process that precomputes and decides, and agents that ask."""

    store: Store
    tenant: str

    def __post_init__(self) -> None:
        tenant = self.tenant
        self.agents = AgentService(self.store, lambda: RULES, tenant=tenant)
        self.reviews = ReviewService(self.store, lambda: RULES, tenant=tenant)

    def keys_of(self, agent: str) -> Keys:
        return self.store.keys_of_agent(self.tenant, agent)

    async def precomputed(
        self, thread: str, agent: str = "support"
    ) -> tuple[Click, ClaimRequest]:
        """Return a click on a call whose approval was precomputed, and its claim."""
        await self.reviews.ask_agent(agent, thread, "hi", requester=DAN, origin=None)
        ref = TurnRef(agent=agent, thread=thread, message_id="m1")
        click, claim = await held_call(self.agents, self.reviews, ref)
        await self.precompute(click)
        return click.with_(request_digest=REQUEST), claim

    async def precompute(self, click: Click) -> None:
        assert await self.reviews.read_as_of_now(click.approval)
        self.reviews.as_shown.precompute(click.approval)
        assert self.reviews.as_shown.precomputed(click)

    async def clicked(self, click: Click) -> bool:
        """Approve as a listener does; return whether what was precomputed counted."""
        if await self.reviews.as_shown.approve(click, PRESSED):
            return True
        outcome = await self.reviews.decide(click, Approve(), PRESSED)
        assert isinstance(outcome, Decided), outcome
        return False

    async def item(self, click: Click) -> Item:
        return (await read(self.reviews, click.approval)).items[click.index]

    async def runs_once(self, click: Click, claim: ClaimRequest) -> None:
        """Hold that it was approved by one click, and starts once."""
        item = await self.item(click)
        assert item.state is ItemState.AUTHORIZED
        assert [vote.by.user for vote in item.votes] == [ANA.user]
        keys = self.store.keys_of_approval(click.approval)
        assert keys
        entries = await audit_entries(self.store.conn, keys)
        names = [one.name for one in entries if one.item == item.id]
        assert names.count(EventName.ITEM_AUTHORIZED) == 1
        assert (await self.agents.claim(claim)).kind == "new"


def moved(keys: Keys, source: Node, target: Node) -> None:
    """Give the slot of a shard to another master, with all that is in it."""
    slot = key_slot(keys.outbox.encode())
    names = {node: node.ask("CLUSTER", "MYID") for node in (source, target)}
    ids = {
        node: name.decode() for node, name in names.items() if isinstance(name, bytes)
    }
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    while found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000):
        words = [one.decode() for one in cast("list[bytes]", found)]
        to = ("127.0.0.1", target.port, "", 0, 5000)
        assert source.ask("MIGRATE", *to, "KEYS", *words) == b"OK"
    for node in (target, source):
        assert node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target]) == b"OK"


async def test_a_cluster_moves_shards_and_loses_sight_of_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tenant that is split by agent over its masters."""
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    store = Store(cluster.url, secrets=SECRETS, shards=8, split=[TENANT])
    side, far = Side(store, TENANT), AGENTS[1]
    first = {agent: await side.precomputed("t1", agent) for agent in AGENTS}
    second = {agent: await side.precomputed("t2", agent) for agent in AGENTS}
    third = {agent: await side.precomputed("t3", agent) for agent in AGENTS}

    source = cluster.master_of(key_slot(side.keys_of(far).outbox.encode()))
    target = next(node for node in cluster.nodes if node is not source)
    moved(side.keys_of(far), source, target)
    for click, claim in first.values():
        assert await side.clicked(click)
        await side.runs_once(click, claim)

    # It hangs: nobody knows whether a click on its shards was written.
    is_there = {
        agent: cluster.master_of(key_slot(side.keys_of(agent).outbox.encode()))
        is not target
        for agent in AGENTS
    }
    target.pause()
    with monkeypatch.context() as patch:
        # Nobody has to wait for long to be told that it is away.
        patch.setattr(connection, "CALL_S", 1.0)
        await clicked_while_away(side, second, is_there)
    target.resume()
    await asyncio.to_thread(until, cluster.is_whole, "the master is back")
    for agent, (click, claim) in second.items():
        if not is_there[agent]:
            await again(side, click)
            await side.runs_once(click, claim)
    for click, claim in third.values():
        assert await side.clicked(click)
        await side.runs_once(click, claim)
    await store.close()


async def clicked_while_away(
    side: Side,
    calls: Mapping[str, tuple[Click, ClaimRequest]],
    is_there: Mapping[str, bool],
) -> None:
    for agent, (click, claim) in calls.items():
        if is_there[agent]:
            assert await side.clicked(click)
            await side.runs_once(click, claim)
        else:
            with pytest.raises(StoreUnavailable):
                await side.clicked(click)


async def again(side: Side, click: Click) -> None:
    """Click once more where the first click was not acknowledged."""
    outcome = await side.reviews.decide(click, Approve(), PRESSED)
    assert outcome.kind in {"decided", "stale"}, outcome


async def leave_unconfirmed(
    monkeypatch: pytest.MonkeyPatch,
    one: Side,
    click: Click,
    other: Side,
    changed: Click,
) -> None:
    """Click in one process and change an approval in another, while replicas are away.

    No replica has either. The first process then precomputes what was changed.
    """
    with monkeypatch.context() as patch:
        # Nobody has to wait for long to be told that it is not confirmed.
        patch.setattr(connection, "CALL_S", 1.5)
        with pytest.raises(StoreUnavailable):
            await one.clicked(click)
        with pytest.raises(StoreUnavailable):
            await other.reviews.times.extend(changed.approval, BEN)
    await one.precompute(changed)


@pytest.fixture
async def sides(sentinel_set: SentinelSet) -> AsyncGenerator[tuple[Side, Side]]:
    """Give two processes on one Sentinel set."""
    stores = [Store(sentinel_set.url, secrets=SECRETS) for _ in range(2)]
    for store in stores:
        await ensure_durable(store.conn)
    yield Side(stores[0], "default"), Side(stores[1], "default")
    for store in stores:
        await store.close()


def fail_over(nodes: SentinelSet) -> None:
    """Kill the master; what the others have not read yet is lost with it."""
    old = nodes.master()
    replicas = [node for node in nodes.servers if node is not old]
    old.kill()
    for one in replicas:
        # Resumed, they would read what the kernel has for them.
        one.kill()
        one.start()
    until(lambda: nodes.master() is not old, "another master is there")


async def test_sentinels_replace_the_master_between_precomputing_and_click(
    sides: tuple[Side, Side],
    sentinel_set: SentinelSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = sides
    kept, unconfirmed, changed = [
        await one.precomputed(f"t{number}") for number in range(3)
    ]
    replicas = [
        node for node in sentinel_set.servers if node is not sentinel_set.master()
    ]
    for node in replicas:
        node.pause()
    await leave_unconfirmed(monkeypatch, one, unconfirmed[0], other, changed[0])

    await asyncio.to_thread(fail_over, sentinel_set)

    await acknowledged(lambda: one.clicked(kept[0]))
    assert (await one.item(unconfirmed[0])).state is ItemState.PENDING
    for click, _ in (unconfirmed, changed):
        assert not await one.clicked(click)
    for click, claim in (kept, unconfirmed, changed):
        await one.runs_once(click, claim)
    click, claim = await one.precomputed("afterwards")
    assert await one.clicked(click)
    await one.runs_once(click, claim)
