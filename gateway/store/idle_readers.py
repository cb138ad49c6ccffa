"""Drop readers of an outbox that nobody reads as any more.

A reader that is gone would keep every event from being trimmed. Whoever drops readers
looks at everything once when it begins to read as one of them again.
"""

from __future__ import annotations

from typing import cast

from redis.exceptions import ResponseError

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.connection import Connection, Reply, number, text
from twokey.gateway.store.keys import Keys


async def drop_idle_readers(
    conn: Connection, keys: Keys, *, prefix: str, idle_ms: int
) -> list[str]:
    """Drop the readers under a prefix of which no process asked for so long.

    Returns:
        Their names.
    """
    try:
        groups = await conn.command("XINFO", "GROUPS", keys.outbox)
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return []  # there is no outbox yet
        raise
    dropped: list[str] = []
    for group in cast("list[Reply]", groups):
        name = text(_fact(group, "name"))
        if not name.startswith(prefix):
            continue
        reply = await conn.command("XINFO", "CONSUMERS", keys.outbox, name)
        idle = [number(_fact(one, "idle")) for one in cast("list[Reply]", reply)]
        # One without a consumer was made this moment, by whoever begins to read.
        if idle and min(idle) > idle_ms:
            await conn.command("XGROUP", "DESTROY", keys.outbox, name)
            dropped.append(name)
    return dropped


def _fact(row: Reply, name: str) -> Reply:
    """Return one of the facts that Redis lists by name, one after the other."""
    facts = cast("list[Reply]", row)
    names = [text(one) for one in facts[::2]]
    return facts[1::2][names.index(name)]
