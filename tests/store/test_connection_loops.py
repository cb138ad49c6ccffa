"""A connection serves every event loop of a process, and closes them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.store import Store
from tests.conftest import eventually


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that runs in a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def client_id(conn: Connection) -> int:
    """Return the server's number of the connection that this loop uses."""
    return number(await conn.command("CLIENT", "ID"))


async def test_each_loop_has_connections_of_its_own_until_all_are_closed(
    store: Store, other_loop: asyncio.AbstractEventLoop
) -> None:
    conn = Connection(store.conn.url)
    theirs = await asyncio.wrap_future(
        asyncio.run_coroutine_threadsafe(client_id(conn), other_loop)
    )
    ours = await client_id(conn)

    async def connected() -> set[int]:
        rows = text(await store.conn.command("CLIENT", "LIST")).split()
        return {int(one[3:]) for one in rows if one.startswith("id=")}

    assert ours != theirs
    assert {ours, theirs} <= await connected()

    await conn.close()

    async def are_gone() -> bool:
        return not {ours, theirs} & await connected()

    await eventually(are_gone)
