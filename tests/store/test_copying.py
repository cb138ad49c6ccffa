"""A tenant's keys are copied in one step, and put back in one step."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.copying import copied, put_back
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store
from tests.store_secrets import SECRETS
from tests.topologies import Cluster

KEYS, OTHER = Keys("default"), Keys("default-2")


async def is_copied(store: Store) -> None:
    conn = store.conn
    await conn.command("SET", KEYS.format, "1 0.1.0")
    await conn.command("SET", KEYS.sealed_by, "key", "PX", 3_600_000)
    await conn.command("XADD", KEYS.outbox, "*", "e", b"\xff")
    await conn.command("XGROUP", "CREATE", KEYS.outbox, "slack", "0")
    await conn.command("HSET", KEYS.restore_counters, "c1", 5)
    await conn.command("SET", OTHER.format, "2")
    before = await copied(store, KEYS)

    await conn.command("DEL", KEYS.outbox)
    await conn.command("SET", KEYS.jobs, "newer")
    await put_back(store, KEYS, before, ["c1"])

    after = await copied(store, KEYS)
    counters = KEYS.restore_counters
    assert {it for it in after if it.name != counters} == {
        it for it in before if it.name != counters
    }
    assert await conn.command("HGET", counters, "c1") == b"0"
    assert await conn.command("GET", OTHER.format) == b"2"


async def test_a_copy_has_all_keys_of_one_tenant_with_their_ends(store: Store) -> None:
    await is_copied(store)


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_a_tenant_is_copied_in_a_cluster(cluster: Cluster) -> None:
    store = Store(cluster.url, secrets=SECRETS)
    await is_copied(store)
    await store.close()


async def test_a_copy_that_the_server_cannot_read_changes_nothing(store: Store) -> None:
    await store.conn.command("SET", KEYS.format, "1 0.1.0 and more than the other one")
    await store.conn.command("SET", KEYS.sealed_by, "key")
    before = await copied(store, KEYS)
    rows = [
        one._replace(dump=b"damaged") if one.name == KEYS.sealed_by else one
        for one in before
    ]

    with pytest.raises(StoreUnavailable, match="DUMP payload"):
        await put_back(store, KEYS, rows, [])

    assert await copied(store, KEYS) == before
