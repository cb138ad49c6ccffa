"""Read members of lists in the store, in which somebody else may have written.

Lists are not sealed: they only say where to look. Whoever writes to the store can put
anything into them, so each reader reads through here: what cannot be read is left out
and reported, and never keeps what stands behind it from being read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar, cast

from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.store.connection import Connection, Reply
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.secret_check import ensure_known
from twokey.gateway.store.security_events import SecurityEvents

T = TypeVar("T")
V = TypeVar("V")

TakenOut = Literal["ZREM", "SREM", ""]
"""How junk is taken out of its list; "" leaves it, where nothing waits behind it."""


class ListedMembers:
    """Reads lists of one store.

    Args:
        conn: to the store.
        security: takes the reports.
    """

    def __init__(self, conn: Connection, security: SecurityEvents) -> None:
        self.conn = conn
        self._security = security

    async def read(
        self,
        keys: Keys,
        name: str,
        members: Reply | Iterable[bytes],
        read: Callable[[bytes], T],
        *,
        tenant: str = "",
        taken_out: TakenOut = "",
    ) -> list[T]:
        """Return what a list holds, without what cannot be read.

        Args:
            keys: of the shard.
            name: key of the list.
            members: of it, as the store returned them.
            read: reads one; raises ValueError for junk.
            tenant: whose list it is; "" for one of the whole shard.
            taken_out: the command that removes junk from it.
        """
        found, junk = list[T](), list[bytes]()
        for member in cast("Iterable[bytes]", members or ()):
            try:
                found.append(read(member))
            except ValueError:
                junk.append(member)
        for one in junk:
            await self.report(keys, name, one, tenant=tenant)
            if taken_out:
                await self.conn.command(taken_out, name, one)
        return found

    async def scored(
        self,
        keys: Keys,
        name: str,
        reply: Reply,
        read: Callable[[bytes], T],
        *,
        tenant: str = "",
    ) -> list[tuple[T, float]]:
        """Return what a sorted set holds, each with its score; see `read`."""
        flat = cast("list[bytes]", reply or [])
        scores = dict(zip(flat[::2], flat[1::2], strict=True))

        def with_score(member: bytes) -> tuple[T, float]:
            return read(member), float(scores[member])

        return await self.read(keys, name, scores, with_score, tenant=tenant)

    async def values(
        self,
        keys: Keys,
        name: str,
        rows: dict[str, bytes],
        read: Callable[[str, bytes], V],
        *,
        tenant: str = "",
    ) -> dict[str, V]:
        """Return what the fields of a hash hold, without what cannot be read.

        ``read`` gets a field and its value, and raises ValueError for junk.
        """
        found = dict[str, V]()
        for field, value in rows.items():
            try:
                found[field] = read(field, value)
            except ValueError:
                evidence = f"{field}=".encode("utf-8", "surrogateescape") + value
                await self.report(keys, name, evidence, tenant=tenant)
        return found

    async def approvals(
        self, keys: Keys, name: str, members: Reply | Iterable[bytes], tenant: str = ""
    ) -> list[str]:
        """Return the approvals of a sorted set; what is none is taken out."""
        return await self.read(
            keys, name, members, keys.unlisted, tenant=tenant, taken_out="ZREM"
        )

    async def ensure_known(self, keys: Keys) -> None:
        """Raise StoreUnavailable where others seal with an unknown secret."""
        await ensure_known(self.conn, self._security, keys)

    async def report(
        self,
        keys: Keys,
        name: str,
        junk: bytes,
        *,
        tenant: str = "",
        about: str = "list",
    ) -> None:
        """Report what somebody else wrote into a list."""
        found = SecurityEvent(
            kind=SecurityKind.SEAL_WRONG,
            tenant=tenant,
            about=about,
            name=keys.suffix(name),
            evidence=hashlib.sha256(junk).hexdigest()[:16],
        )
        await self._security.report(keys, found)
