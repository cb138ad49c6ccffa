"""Index each tenant's standing approvals; record when Slack confirmed givers' roles.

The records themselves are approvals. The index only says which to look at: one that is
listed and has ended costs a look, and one that is not listed covers nothing.
"""

from __future__ import annotations

from keyturn.gateway.store.connection import Connection, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.listed_members import without_junk
from keyturn.gateway.store.record_seals import CHECKED, RecordSeals
from keyturn.gateway.store.script import Script

CONFIRM = Script("confirm")


class StandingStore:
    """Standing approvals of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._seals = RecordSeals(conn)

    async def add(self, keys: Keys, approval: str, *, until_ms: int) -> None:
        """List a standing approval, before it is opened."""
        await self._conn.command("ZADD", keys.standing, until_ms, approval)

    async def listed(self, keys: Keys) -> list[str]:
        """Return the ids of those that may be in force, the first to end first."""
        key = keys.standing
        found = await self._conn.command("ZRANGE", key, 0, -1)
        return await without_junk(self._conn, key, found, text)

    async def drop(self, keys: Keys, approval: str) -> None:
        """Take one that has ended from the list."""
        await self._conn.command("ZREM", keys.standing, approval)

    async def drop_overdue(self, keys: Keys) -> None:
        """Take those whose time is over from the list, in whatever state they are."""
        key = keys.standing
        now_ms = await self._conn.now_ms(key)
        await self._conn.command("ZREMRANGEBYSCORE", key, "-inf", now_ms)

    async def confirm(self, keys: Keys, approval: str, *, asked_ms: int) -> bool:
        """Note when Slack confirmed the givers' roles; False when it has ended.

        ``asked_ms`` is by the store's clock, from before Slack was asked.
        """
        seal = self._seals.of_moment(approval, CHECKED, str(asked_ms))
        reply = await CONFIRM(
            self._conn, head=keys.head(approval), asked_ms=asked_ms, seal=seal
        )
        return text(reply[0]) == "confirmed"
