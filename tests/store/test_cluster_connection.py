"""Commands find the master of their tenant, also while masters move and die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from redis.crc import key_slot

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection, number, text
from tests.conftest import eventually
from tests.topologies import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]

SHARDS = range(16)
SCRIPT = (
    "#!lua\nredis.call('SET', KEYS[1], ARGV[1]) return {redis.call('GET', KEYS[1])}"
)

COUNTING = "#!lua\nreturn {redis.call('INCR', KEYS[1])}"


def key(shard: int, name: str = "key") -> str:
    return f"tk:{{s{shard}}}:{name}"


@pytest.fixture
async def conn(cluster: Cluster) -> AsyncGenerator[Connection]:
    """Give a connection that knows one node to ask."""
    opened = Connection(
        f"redis+cluster://{cluster.nodes[0].address}?client_name=tested"
    )
    yield opened
    await opened.close()


async def test_each_shard_is_at_its_master(cluster: Cluster, conn: Connection) -> None:
    async def use(shard: int) -> None:
        assert await conn.evalsha(SCRIPT, [key(shard)], [shard]) == [b"%d" % shard]
        assert number(await conn.command("GET", key(shard))) == shard
        seen, time = await conn.transaction(["GET", key(shard)], ["TIME"])
        assert number(seen) == shard
        assert time

    await asyncio.gather(*(use(shard) for shard in SHARDS for _ in range(50)))

    masters = await conn.on_each_master("DBSIZE")
    assert {*masters} == {one.address for one in cluster.nodes}
    assert sum(map(number, masters.values())) == len(SHARDS)
    assert all(map(number, masters.values()))


async def test_readers_wait_at_their_master(cluster: Cluster, conn: Connection) -> None:
    async def read(shard: int) -> object:
        return await conn.command(
            "XREADGROUP", "GROUP", "g", "c", "BLOCK", 9000,
            "STREAMS", key(shard, "stream"), ">",
        )  # fmt: skip

    for shard in SHARDS:
        await conn.command(
            "XGROUP", "CREATE", key(shard, "stream"), "g", "0", "MKSTREAM"
        )
    readers = [asyncio.create_task(read(shard)) for shard in SHARDS]

    async def all_wait() -> bool:
        rows = await conn.on_each_master("CLIENT", "LIST")
        return sum(text(one).count(" cmd=xreadgroup ") for one in rows.values()) == 16

    await eventually(all_wait)
    for shard in SHARDS:
        await conn.command("XADD", key(shard, "stream"), "*", "shard", shard)

    for shard, reply in zip(SHARDS, await asyncio.gather(*readers), strict=True):
        [[_, [[_, fields]]]] = cast("list[list[list[tuple[bytes, object]]]]", reply)
        assert fields == {b"shard": b"%d" % shard}


async def test_callers_follow_a_moved_slot(cluster: Cluster, conn: Connection) -> None:
    slot = key_slot(key(0).encode())
    source = cluster.master_of(slot)
    target = next(one for one in cluster.nodes if one is not source)
    names = {one: text(one.ask("CLUSTER", "MYID")) for one in (source, target)}
    for at in range(20):
        await conn.command("SET", key(0, str(at)), at)

    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    for at in range(10):
        moved = key(0, str(at))
        assert source.ask("MIGRATE", "127.0.0.1", target.port, moved, 0, 5000) == b"OK"

    async def is_right(at: int) -> bool:
        one = key(0, str(at))
        [seen] = await conn.transaction(["GET", one])
        again = await conn.evalsha(SCRIPT, [one], [at])
        return number(seen) == at and again == [b"%d" % at]

    assert all(await asyncio.gather(*(is_right(at) for at in range(20))))
    assert await conn.evalsha(SCRIPT, [key(0, "new")], ["new"]) == [b"new"]

    for at in range(10, 20):
        source.ask("MIGRATE", "127.0.0.1", target.port, key(0, str(at)), 0, 5000)
    for one in (target, source):
        assert one.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target]) == b"OK"
    assert all(await asyncio.gather(*(is_right(at) for at in range(20))))
    assert await conn.command("GET", key(0, "new")) == b"new"


async def test_a_moving_slot_runs_a_script_once(replicated_cluster: Cluster) -> None:
    conn = Connection(replicated_cluster.url)
    conn.confirmed_by = 1
    slot, many = key_slot(key(0).encode()), [key(0, name) for name in "abc"]
    source = replicated_cluster.master_of(slot)
    target = replicated_cluster.master_of((slot + 8000) % 16384)
    assert source is not target
    names = {one: text(one.ask("CLUSTER", "MYID")) for one in (source, target)}
    for one in many:
        await conn.evalsha(COUNTING, [one], [])

    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    moved = source.ask("MIGRATE", "127.0.0.1", target.port, many[0], 0, 5000)
    assert moved == b"OK"

    # Its keys may be at two masters: neither runs it, and neither confirms it.
    refused = await asyncio.gather(
        *(conn.evalsha(COUNTING, [one], []) for one in many), return_exceptions=True
    )
    assert [type(one) for one in refused] == [StoreUnavailable] * len(many)
    with pytest.raises(StoreUnavailable):
        await conn.confirm(many[0])

    for one in many[1:]:
        source.ask("MIGRATE", "127.0.0.1", target.port, one, 0, 5000)
    for node_of_both in (target, source):
        node_of_both.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target])
    for one in many:
        assert await conn.evalsha(COUNTING, [one], []) == [2]
    await conn.close()
