"""The store follows the Sentinels, and never uses a replaced master."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from keyturn.gateway.errors import StoreUnavailable, UnsafeStore
from keyturn.gateway.store.connection import connection
from keyturn.gateway.store.connection.connection import Connection, text
from keyturn.gateway.store.connection.durability import (
    ensure_durable,
    topology_problems,
)
from keyturn.gateway.store.store import open_store
from tests.conftest import eventually
from tests.topologies import MASTER, Cluster, SentinelSet, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]


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
