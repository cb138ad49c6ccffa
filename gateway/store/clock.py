"""Clock of the store: the one by which everything that is kept in it is dated."""

from __future__ import annotations

from typing import cast

from twokey.gateway.store.connection import Connection, Reply


def milliseconds(reply: Reply) -> int:
    """Return the reply of TIME in Unix milliseconds."""
    seconds, micros = cast("tuple[bytes | int, bytes | int]", reply)
    return int(seconds) * 1000 + int(micros) // 1000


async def time_ms(conn: Connection) -> int:
    """Return the store's time in Unix milliseconds."""
    return milliseconds(await conn.command("TIME"))
