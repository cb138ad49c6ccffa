"""Replicas take over masters of a cluster between precomputing and click.

What was acknowledged stands, once; what no replica had is said to be unknown, is lost
with its master, and can be given again.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from redis.crc import key_slot

from tests.races.test_failovers import acknowledged
from tests.races.test_precomputed_failovers import Side, leave_unconfirmed
from tests.store_secrets import SECRETS
from tests.topologies import Cluster, Node, until
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.durability import ensure_durable
from twokey.gateway.store.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("topologies"),
    pytest.mark.parametrize("server_program", ["valkey"], indirect=True),
]


def replica_of(cluster: Cluster, master: Node) -> Node:
    """Return the one node that copies a master."""
    row = cast("list[list[list[bytes]]]", master.ask("ROLE"))
    port = int(row[2][0][1])
    return next(node for node in cluster.nodes if node.port == port)


async def test_a_replica_takes_over_between_precomputing_and_click(
    replicated_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = replicated_cluster
    stores = [Store(cluster.url, secrets=SECRETS) for _ in range(2)]
    for store in stores:
        await ensure_durable(store.conn)
    one, other = (Side(store, "default") for store in stores)
    slot = key_slot(one.keys_of("support").outbox.encode())
    done, kept, unconfirmed, changed = [
        await one.precomputed(f"t{number}") for number in range(4)
    ]
    assert await one.clicked(done[0])

    # The master answers, and its replica has nothing of what it writes now.
    master = cluster.master_of(slot)
    replica = replica_of(cluster, master)
    replica.pause()
    await leave_unconfirmed(monkeypatch, one, unconfirmed[0], other, changed[0])
    master.kill()
    # Resumed, it would read what the kernel has for it.
    replica.kill()
    replica.start()
    # By itself it would not: started anew, it cannot say how old its data are.
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    await asyncio.to_thread(
        until, lambda: cluster.master_of(slot) is replica, "the replica took over"
    )
    master.start()
    await asyncio.to_thread(until, cluster.is_whole, "the cluster is whole again")

    await acknowledged(lambda: one.clicked(kept[0]))
    assert (await one.item(unconfirmed[0])).state is ItemState.PENDING
    for click, _ in (unconfirmed, changed):
        assert not await one.clicked(click)
    for click, claim in (done, kept, unconfirmed, changed):
        await one.runs_once(click, claim)
    click, claim = await one.precomputed("afterwards")
    assert await one.clicked(click)
    await one.runs_once(click, claim)
    for store in stores:
        await store.close()
