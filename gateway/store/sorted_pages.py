"""Read a sorted set by pages of its scores, from a place on, however long it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, cast

from keyturn.gateway.store.connection import Argument, Connection

PAGE = 500
"""Members of a page."""


class Due(NamedTuple):
    """A member of a sorted set, and its score.

    Attributes:
        at: Unix milliseconds, as the store writes them.
        member: see `Keys.listed`.
    """

    at: str
    member: bytes


async def due_page(
    conn: Connection, key: str, after: Due | None, size: int
) -> list[Due]:
    """Return what is due next behind a place; nothing at the end.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    wanted = count = max(size, 1)
    start: Argument = "-inf" if after is None else after.at
    while True:
        reply = await conn.command(
            "ZRANGEBYSCORE", key, start, "+inf", "WITHSCORES", "LIMIT", 0, count
        )
        flat = cast("list[bytes]", reply or [])
        pairs = zip(flat[::2], flat[1::2], strict=True)
        rows = [Due(str(float(at)), member) for member, at in pairs]
        found = [row for row in rows if after is None or _key(row) > _key(after)]
        # Many may be due at the same millisecond: those before the place are skipped.
        if len(found) >= wanted or len(rows) < count:
            return found[:wanted]
        count *= 4


async def pages_by_score(
    conn: Connection, key: str, *, after: Due | None = None, size: int = PAGE
) -> AsyncGenerator[list[Due]]:
    """Yield the members of a sorted set behind a place, the lowest score first.

    Every member that stays where it is comes exactly once. What is added, removed or
    moved meanwhile may be missed, or come twice.
    """
    page = await due_page(conn, key, after, size)
    while page:
        yield page
        page = await due_page(conn, key, page[-1], size)


def _key(due: Due) -> tuple[float, bytes]:
    # As the set orders them.
    return float(due.at), due.member
