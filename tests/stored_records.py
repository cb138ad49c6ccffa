"""Read the large fields of a stored record, which may be packed."""

from __future__ import annotations

import json
from typing import Any, cast

from twokey.gateway.store.connection import Connection
from twokey.gateway.store.packing import unpacked


async def stored(conn: Connection, blobs: str, field: str) -> dict[str, Any]:
    """Return the JSON in a field of an approval's large fields."""
    found = await conn.command("HGET", blobs, field)
    assert isinstance(found, bytes), field
    return cast("dict[str, Any]", json.loads(unpacked(found)))
