"""Walk a sorted set by pages of its scores, however long it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

from twokey.gateway.store.connection import Argument, Connection

PAGE = 500
"""Members of a page."""


async def pages_by_score(
    conn: Connection, key: str, *, size: int = PAGE
) -> AsyncGenerator[list[bytes]]:
    """Yield the members of a sorted set, the lowest score first, some at a time.

    Every member that stays where it is comes exactly once. What is added, removed or
    moved meanwhile may be missed, or come twice.
    """
    start: Argument = "-inf"
    # Members with the score at which the page before ended: pages begin with it again,
    # since there may be more of them. By name and not by a count: one may be removed
    # meanwhile.
    seen = set[bytes]()
    while True:
        reply = await conn.command(
            "ZRANGEBYSCORE", key, start, "+inf", "WITHSCORES",
            "LIMIT", 0, size + len(seen),
        )  # fmt: skip
        flat = cast("list[bytes]", reply or [])
        rows = list(zip(flat[::2], flat[1::2], strict=True))
        page = [member for member, _ in rows if member not in seen]
        if not page:
            return
        yield page
        last = rows[-1][1]
        same = {member for member, score in rows if score == last}
        seen, start = (seen | same if last == start else same), last
