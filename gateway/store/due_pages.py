"""Read the index of what is due in a shard, a page at a time, from a place on."""

from __future__ import annotations

from typing import NamedTuple, cast

from twokey.gateway.store.connection import Argument, Connection
from twokey.gateway.store.keys import Keys

_PAGE = 100
_MOST = 10_000


class Due(NamedTuple):
    """An approval, as the index lists it, and when something of it is due.

    Attributes:
        at: Unix milliseconds, as the store writes them.
        member: see `Keys.listed`.
    """

    at: str
    member: bytes


async def due_page(
    conn: Connection, keys: Keys, after: Due | None, size: int
) -> list[Due]:
    """Return what is due next behind a place; nothing at the end.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    wanted = min(max(size, 1), _PAGE)
    start: Argument = "-inf" if after is None else after.at
    count = wanted
    while True:
        reply = await conn.command(
            "ZRANGEBYSCORE", keys.expiry, start, "+inf", "WITHSCORES",
            "LIMIT", 0, count,
        )  # fmt: skip
        flat = cast("list[bytes]", reply or [])
        rows = [
            Due(str(float(at)), member)
            for member, at in zip(flat[::2], flat[1::2], strict=True)
        ]
        found = [row for row in rows if after is None or _key(row) > _key(after)]
        # Many may be due at the same millisecond: those before the place are skipped.
        if len(found) >= wanted or len(rows) < count or count >= _MOST:
            return found[:wanted]
        count *= 4


def _key(due: Due) -> tuple[float, bytes]:
    # As the index orders them.
    return float(due.at), due.member
