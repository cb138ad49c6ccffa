"""Note of the audit tree of a shard in the store: which one it is, and what is signed.

It keeps a gateway whose folder lacks the tree from beginning another one, and tells one
that has an older copy. It is sealed. One without a seal, as older versions write it,
counts where the signed files say the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from twokey.gateway.store.connection import Connection, entries, fields, text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.readers import EntryId, entry_id
from twokey.gateway.store.sealing import Sealed, Sealing

OVERDUE_MS = 10 * 60 * 1000
"""From how long on it is told that entries wait for a checkpoint: it is due each minute
while any do."""

_FIELDS = ("origin", "size", "root")
_PLACE = re.compile(r"[0-9]+-[0-9]+", re.ASCII)


class TreeNote(NamedTuple):
    """The newest checkpoint by the store; all is empty where no tree is known.

    A size that is no number is -1: anybody may have written it.
    """

    origin: str = ""
    size: int = 0
    root: str = ""
    is_sealed: bool = False


class TreeNotes:
    """The note of one shard.

    Attributes:
        last: as this process took or wrote it last.
    """

    def __init__(self, conn: Connection, sealing: Sealing, keys: Keys) -> None:
        self._conn = conn
        self._sealing = sealing
        self._keys, self._place = keys, keys.audit_tree
        self.last = TreeNote()

    async def read(self) -> TreeNote:
        """Return what the store knows."""
        stored = fields(await self._conn.command("HGETALL", self._place))
        if not stored:
            return TreeNote()
        origin, size, root = (stored.get(name, b"") for name in _FIELDS)
        body, seal = b"\n".join((origin, size, root)), stored.get("seal", b"")
        is_sealed = self._sealing.is_valid(Sealed.TREE_NOTE, (self._place,), body, seal)
        if not is_sealed:
            await self._sealing.ensure_known(self._keys)
        return TreeNote(
            origin.decode(errors="replace"),
            int(size) if size.isdigit() else -1,
            root.decode(errors="replace"),
            is_sealed,
        )

    async def write(self, origin: str, size: int, root: str, at: EntryId) -> None:
        """Write which tree a shard has, and what is signed of it.

        Args:
            origin: name of the tree.
            size: how many entries are signed.
            root: of the tree over them.
            at: place of the last of them; it has no seal, since nothing but
                `is_overdue` goes by it.
        """
        body = f"{origin}\n{size}\n{root}".encode()
        await self._conn.command(
            "HSET", self._place, "origin", origin, "size", size, "root", root,
            "last", f"{at[0]}-{at[1]}",
            "seal", self._sealing.seal(Sealed.TREE_NOTE, (self._place,), body),
        )  # fmt: skip
        self.last = TreeNote(origin, size, root, is_sealed=True)


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
