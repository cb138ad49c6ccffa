"""Read and replace the texts of a stored record, which may be packed."""

from __future__ import annotations

import json
from typing import Any, cast

from twokey.gateway.store import codec, record_texts
from twokey.gateway.store.connection import Connection, Reply, fields
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.packing import unpacked
from twokey.gateway.store.shared_parts import joined


async def pinned(conn: Connection, keys: Keys, approval: str) -> dict[str, Any]:
    """Return what an approval was opened as."""
    return _read(await conn.command("GET", keys.pinned(approval)))


async def detail(conn: Connection, keys: Keys, approval: str) -> dict[str, Any]:
    """Return the detail of an approval's first item."""
    changed = await conn.command("HGET", keys.head(approval), "0:d")
    if changed is not None:
        return _read(changed)
    head = fields(await conn.command("HGETALL", keys.head(approval)))
    bodies = await conn.transaction(
        *(["HGET", keys.schema(one), "body"] for one in codec.digests(head))
    )
    row = (await pinned(conn, keys, approval))["items"][0]
    row = joined(row, {at: _read(body) for at, body in enumerate(bodies)})
    return {name: one for name, one in row.items() if name in record_texts.IN_DETAIL}


def _read(found: Reply) -> dict[str, Any]:
    assert isinstance(found, bytes)
    return cast("dict[str, Any]", json.loads(unpacked(found)))
