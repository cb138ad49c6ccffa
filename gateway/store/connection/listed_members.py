"""Read lists in the store that may contain foreign entries.

Lists are not sealed: they only contain candidates. So each reader skips malformed
members and continues. A long sorted set is read in pages by score.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

from keyturn.gateway.store.connection.connection import Argument, Connection, Reply
from keyturn.gateway.store.keys import Keys

T = TypeVar("T")

PAGE = 500
"""Members on a page."""


def readable(members: Reply | Iterable[bytes], read: Callable[[bytes], T]) -> list[T]:
    """Parse the members of a list, without malformed ones.

    Args:
        members: the store's reply.
        read: parses a member; raises ValueError for junk.
    """
    found = list[T]()
    for member in cast("Iterable[bytes]", members or ()):
        with suppress(ValueError):
            found.append(read(member))
    return found


async def due_now(
    conn: Connection, key: str, limit: int, read: Callable[[bytes], T]
) -> list[T]:
    """Return the members of a sorted set that are due by the store's clock.

    The earliest come first. With a clock that is ahead, members that are not yet due
    would be listed and written in every round.
    """
    now_ms = await conn.now_ms(key)
    reply = await conn.command("ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, limit)
    return readable(reply, read)


class Due(NamedTuple):
    """A member of a sorted set, and its score.

    Attributes:
        at: Unix milliseconds in the store's notation.
        member: see `Keys.listed`.
    """

    at: str
    member: bytes


async def due_page(
    conn: Connection, key: str, after: Due | None, size: int
) -> list[Due]:
    """Return the next members after a position; empty at the end.

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
        # Many may have the same score: skip those up to the position.
        if len(found) >= wanted or len(rows) < count:
            return found[:wanted]
        count *= 4


async def approvals_by_score(
    conn: Connection, keys: Keys, key: str, *, size: int = PAGE
) -> AsyncGenerator[list[str]]:
    """Yield the approvals in a sorted set by pages, lowest score first.

    Unchanged members come exactly once. Members added, removed or moved during the
    iteration may be missed, or come twice.
    """
    page = await due_page(conn, key, None, size)
    while page:
        yield readable([one.member for one in page], keys.unlisted)
        page = await due_page(conn, key, page[-1], size)


def _key(due: Due) -> tuple[float, bytes]:
    # The order of the sorted set.
    return float(due.at), due.member
