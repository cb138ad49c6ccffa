"""The store follows the Sentinels, and never uses a replaced master."""

from __future__ import annotations

import contextlib

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection import connection
from keyturn.gateway.store.connection.connection import Connection, text
from tests.conftest import eventually
from tests.topologies import SentinelSet, until

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


async def test_a_replica_that_sentinels_call_the_master_gets_no_writes(
    sentinel_set: SentinelSet,
) -> None:
    conn = Connection(sentinel_set.url)
    await conn.command("SET", "key", "before")
    master = sentinel_set.master()
    other = next(one for one in sentinel_set.servers if one is not master)

    # Its clients are not informed, and the Sentinels do not know yet.
    master.ask("REPLICAOF", "127.0.0.1", other.port)

    with pytest.raises(StoreUnavailable, match="The server is no master"):
        await conn.command("SET", "key", "after")
    await conn.close()


async def test_without_sentinels_an_open_connection_goes_on(
    sentinel_set: SentinelSet,
) -> None:
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
