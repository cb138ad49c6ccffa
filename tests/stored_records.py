"""Read the document of a stored record, which may be packed."""

from __future__ import annotations

import json
from typing import Any, cast

from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.encryption import unpacked


async def document(conn: Connection, keys: Keys, approval: str) -> dict[str, Any]:
    """Return the document of an approval."""
    found = await conn.command("GET", keys.document(approval))
    assert isinstance(found, bytes)
    return cast("dict[str, Any]", json.loads(unpacked(found)))


async def detail(conn: Connection, keys: Keys, approval: str) -> dict[str, Any]:
    """Return the first item of the document of an approval."""
    return cast("dict[str, Any]", (await document(conn, keys, approval))["items"][0])


async def put_detail(
    conn: Connection, keys: Keys, approval: str, **changes: object
) -> None:
    """Change the first item of the document of an approval."""
    found = await document(conn, keys, approval)
    found["items"][0].update(changes)
    await conn.command("SET", keys.document(approval), json.dumps(found))
