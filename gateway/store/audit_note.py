"""Note of the audit tree of a tenant in the store: which one it is, and what is signed.

It keeps a gateway whose folder lacks the tree from beginning another one, and tells one
that has an older copy. The signed files alone count: whoever writes another note keeps
entries from being signed, which is an alarm.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from keyturn.gateway.store.connection import Connection, entries, fields, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.readers import EntryId, entry_id

OVERDUE_MS = 10 * 60 * 1000
"""From how long on it is told that entries wait for a checkpoint: it is due each minute
while any do."""

_FIELDS = ("origin", "size", "root", "last")
_NUMBER = re.compile(rb"[0-9]{1,12}")
_PLACE = re.compile(r"[0-9]+-[0-9]+", re.ASCII)


class TreeNote(NamedTuple):
    """The newest checkpoint by the store; all is empty where no tree is known.

    A size that is no number is -1: anybody may have written it.
    """

    origin: str = ""
    size: int = 0
    root: str = ""
    last: str = ""


class TreeNotes:
    """The note of one tenant.

    Attributes:
        last: as this process took or wrote it last.
    """

    def __init__(self, conn: Connection, keys: Keys) -> None:
        self._conn = conn
        self._place = keys.audit_tree
        self.last = TreeNote()

    async def read(self) -> TreeNote:
        """Return what the store knows."""
        stored = fields(await self._conn.command("HGETALL", self._place))
        if not stored:
            return TreeNote()
        origin, size, root, last = (stored.get(name, b"") for name in _FIELDS)
        return TreeNote(
            origin.decode(errors="replace"),
            int(size) if _NUMBER.fullmatch(size) else -1,
            root.decode(errors="replace"),
            last.decode(errors="replace"),
        )

    async def write(self, origin: str, size: int, root: str, at: EntryId) -> None:
        """Write which tree a tenant has, and what is signed of it.

        Args:
            origin: name of the tree.
            size: how many entries are signed.
            root: of the tree over them.
            at: place of the last of them, by which `is_overdue` goes.
        """
        await self._conn.command(
            "HSET", self._place, "origin", origin, "size", size, "root", root,
            "last", place_text(at),
        )  # fmt: skip
        self.last = TreeNote(origin, size, root, place_text(at))


def place_text(place: EntryId) -> str:
    """Return a place of the stream as the store writes it."""
    return f"{place[0]}-{place[1]}"


async def is_overdue(conn: Connection, keys: Keys) -> bool:
    """Return whether nobody has signed the oldest entry that waits for it, in time.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    last = text(await conn.command("HGET", keys.audit_tree, "last"))
    if not _PLACE.fullmatch(last):
        return False
    start = f"({last}"
    waiting = await conn.command("XRANGE", keys.audit, start, "+", "COUNT", 1)
    oldest = [entry_id(one.id)[0] for one in entries(waiting)]
    return bool(oldest) and await conn.now_ms(keys.audit) - oldest[0] > OVERDUE_MS
