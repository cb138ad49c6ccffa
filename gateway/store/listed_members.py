"""Read members of lists in the store, in which somebody else may have written.

Lists are not sealed: they only say where to look. So each reader leaves out what it
cannot read, and reads on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal, TypeVar, cast

from keyturn.gateway.store.connection import Connection, Reply
from keyturn.gateway.store.keys import Keys

T = TypeVar("T")


def readable(members: Reply | Iterable[bytes], read: Callable[[bytes], T]) -> list[T]:
    """Return the members of a list that can be read.

    Args:
        members: as the store returned them.
        read: reads one; raises ValueError for junk.
    """
    found = list[T]()
    for member in cast("Iterable[bytes]", members or ()):
        with suppress(ValueError):
            found.append(read(member))
    return found


def readable_fields(
    rows: Mapping[str, bytes], read: Callable[[str, bytes], T]
) -> dict[str, T]:
    """Return the fields of a hash that can be read; see `readable`."""
    found = dict[str, T]()
    for field, value in rows.items():
        with suppress(ValueError):
            found[field] = read(field, value)
    return found


async def without_junk(
    conn: Connection,
    name: str,
    members: Reply | Iterable[bytes],
    read: Callable[[bytes], T],
    *,
    taken_out: Literal["ZREM", "SREM"] = "ZREM",
) -> list[T]:
    """Return the members of a list that can be read; take the others out of it.

    A look reads so many members only: junk could stand in front of all others.
    """
    found = list[T]()
    for member in cast("Iterable[bytes]", members or ()):
        try:
            found.append(read(member))
        except ValueError:
            await conn.command(taken_out, name, member)
    return found


async def listed_approvals(
    conn: Connection, keys: Keys, name: str, members: Reply | Iterable[bytes]
) -> list[str]:
    """Return the approvals of a sorted set; what is none is taken out."""
    return await without_junk(conn, name, members, keys.unlisted)
