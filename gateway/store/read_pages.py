"""Store which pages of a call's full view a reviewer has seen."""

from __future__ import annotations

from typing import cast

from keyturn.gateway.store.card_copies import AttachedStore
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing import Sealed, Sealing


class ReadPageStore(AttachedStore):
    """The pages that reviewers have seen, each with a seal.

    Args:
        conn: the server.
        sealing: without it, who can write to the store could say that somebody has
            seen what they have not.
    """

    def __init__(self, conn: Connection, sealing: Sealing) -> None:
        super().__init__(conn)
        self._sealing = sealing

    async def opened_page(
        self, keys: Keys, approval: str, *, reader: str, page: int, pages: int
    ) -> bool:
        """Note that a reviewer saw one page; say whether they have seen them all.

        Args:
            keys: of the approval's tenant.
            approval: its id.
            reader: user, item and action hash, so that an edit starts over.
            page: counted from 0.
            pages: how many there are.
        """
        # A field for each page, so that two requests at once do not overwrite each
        # other.
        name, own = f"{reader} {page}", keys.opened(approval)
        seal = self._sealing.seal(Sealed.PAGE, (own, name), b"")
        await self._attach(keys, approval, own=own, newest={name: seal.hex()})
        return await self.has_opened(keys, approval, reader=reader, pages=pages)

    async def has_opened(
        self, keys: Keys, approval: str, *, reader: str, pages: int
    ) -> bool:
        """Return whether a reviewer has seen every page of an item's full view."""
        own = keys.opened(approval)
        names = [f"{reader} {page}" for page in range(pages)]
        reply = await self._conn.command("HMGET", own, *names)
        found = cast("list[bytes | None]", reply)
        has_all = True
        for name, stored in zip(names, found, strict=True):
            if stored is not None and self._is_ours(own, name, stored):
                continue
            has_all = False
            if stored is not None:
                await self._sealing.refuse(keys, Sealed.PAGE, stored, approval=approval)
        return has_all

    def _is_ours(self, own: str, name: str, stored: bytes) -> bool:
        try:
            seal = bytes.fromhex(stored.decode())
        except ValueError:
            return False
        return self._sealing.is_valid(Sealed.PAGE, (own, name), b"", seal)
