"""Commands find the master of their tenant, also while masters move and die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest
from redis.crc import key_slot

from keyturn.gateway.errors import StoreUnavailable, UnsafeStore
from keyturn.gateway.store.connection import connection
from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.connection.durability import (
    ensure_durable,
    topology_problems,
)
from keyturn.gateway.store.store import open_store
from tests.conftest import eventually
from tests.topologies import MASTER, Cluster, SentinelSet, until

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


# The store follows the Sentinels, and never uses a replaced master.


async def test_a_master_that_hangs_and_was_replaced_costs_a_bounded_time(
    sentinel_set: SentinelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CALL_S", 3.0)
    conn = Connection(sentinel_set.url)
    await conn.command("SET", "key", "before")
    hung = sentinel_set.master()
    hung.pause()

    async def is_written() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return bool(await conn.command("SET", "key", "after"))
        return False

    await eventually(is_written, within_s=90)
    until(lambda: sentinel_set.master() is not hung, "there is another")
    hung.resume()
    await conn.close()


async def test_a_false_master_gets_no_writes(sentinel_set: SentinelSet) -> None:
    conn = Connection(sentinel_set.url)
    await conn.command("SET", "key", "before")
    master = sentinel_set.master()
    other = next(one for one in sentinel_set.servers if one is not master)

    # Its clients are not informed, and the Sentinels do not know yet.
    master.ask("REPLICAOF", "127.0.0.1", other.port)

    with pytest.raises(StoreUnavailable, match="The server is no master"):
        await conn.command("SET", "key", "after")
    await conn.close()


async def test_an_open_connection_needs_no_sentinel(sentinel_set: SentinelSet) -> None:
    conn = Connection(sentinel_set.url)
    await conn.command("SET", "key", "value")
    for one in sentinel_set.sentinels:
        one.kill()

    assert await conn.command("GET", "key") == b"value"
    late = Connection(sentinel_set.url)
    with pytest.raises(StoreUnavailable, match="No Sentinel knows a master"):
        await late.command("GET", "key")
    await late.close()
    await conn.close()


async def test_one_sentinel_that_is_left_is_enough(sentinel_set: SentinelSet) -> None:
    first, *others = sentinel_set.sentinels
    first.kill()
    others[0].pause()
    conn = Connection(f"{sentinel_set.url}?client_name=tested")

    assert " name=tested " in text(await conn.command("CLIENT", "INFO"))
    others[0].resume()
    await conn.close()


# A store of several servers that could stop or lose something is refused at start.


async def problems_of(url: str) -> str:
    """Return why a store is refused; "" when it is not."""
    conn = Connection(url)
    try:
        await ensure_durable(conn)
    except UnsafeStore as refused:
        return str(refused)
    finally:
        await conn.close()
    return ""


async def test_a_whole_cluster_is_safe_and_each_master_of_it_is_checked(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with open_store(cluster.url, tmp_path) as store:
        assert store.conn.confirmed_by == 0

    asked, gone, lax = cluster.nodes
    lax.ask("CONFIG", "SET", "appendfsync", "everysec")
    refused = await problems_of(cluster.url)
    assert f"{lax.address}: appendfsync is 'everysec'" in refused
    assert asked.address not in refused

    gone.kill()
    await asyncio.to_thread(
        until, lambda: b"cluster_state:fail" in _said(asked.ask("CLUSTER", "INFO")),
        "the cluster knows",
    )  # fmt: skip
    [problem] = await topology_problems(cluster.url)
    assert f"The cluster is not whole, says {asked.address}" in problem


async def test_a_sentinel_set_is_safe_while_its_master_waits_for_a_replica(
    sentinel_set: SentinelSet, tmp_path: Path
) -> None:
    async with open_store(sentinel_set.url, tmp_path) as store:
        assert store.conn.confirmed_by == 1

    sentinel_set.master().ask("CONFIG", "SET", "min-replicas-to-write", "0")
    refused = await problems_of(sentinel_set.url)
    assert "run: CONFIG SET min-replicas-to-write 1" in refused


async def test_absent_sentinels_are_named(sentinel_set: SentinelSet) -> None:
    first, second, third = sentinel_set.sentinels
    first.kill()

    refused = await problems_of(sentinel_set.url)
    alone = f"redis+sentinel://{third.address}/{MASTER}"

    assert f"The Sentinel {first.address} does not answer" in refused
    assert "lists 1 Sentinels; list three or more" in await problems_of(alone)
    second.kill()
    await asyncio.to_thread(
        until, lambda: _said(third.ask("SENTINEL", "CKQUORUM", MASTER)) == b"",
        "the last one sees no majority",
    )  # fmt: skip
    assert f"cannot replace the master '{MASTER}'" in await problems_of(alone)


def _said(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else b""
