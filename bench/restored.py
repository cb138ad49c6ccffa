"""Put a store back to what it was, so that the same work can be done in it again."""

from __future__ import annotations

import asyncio
from typing import cast

from twokey.gateway.store.store import Store

_AT_ONCE = 500


async def saved(store: Store) -> dict[bytes, bytes]:
    """Return every key of the store as the server dumps it."""
    keys = cast("list[bytes]", await store.conn.command("KEYS", "*"))
    found: dict[bytes, bytes] = {}
    for at in range(0, len(keys), _AT_ONCE):
        part = keys[at : at + _AT_ONCE]
        dumps = await asyncio.gather(*(store.conn.command("DUMP", key) for key in part))
        found |= zip(part, cast("list[bytes]", dumps), strict=True)
    return found


async def restore(store: Store, kept: dict[bytes, bytes]) -> None:
    """Put the store back. Keys have no expiry here: a round takes seconds.

    Who read of it before takes what was put back for a replay of older records: only
    processes that start afterwards can work with it.
    """
    await store.conn.command("FLUSHALL")
    rows = [*kept.items()]
    for at in range(0, len(rows), _AT_ONCE):
        await asyncio.gather(
            *(
                store.conn.command("RESTORE", key, 0, dumped)
                for key, dumped in rows[at : at + _AT_ONCE]
            )
        )
