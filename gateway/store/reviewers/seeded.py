"""Store the checks of reviewers: the seeded defect of a tenant, and its spot checks.

A seeded defect is not an approval. Its key is not read by any claim or decision, so a
click on its card can never run anything.
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.quality_checks import Seeded
from keyturn.gateway.store.connection.connection import Reply, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import Repository, write_if

_KEEP_MS = int(timedelta(days=400).total_seconds() * 1000)
_DAY_MS = 86_400_000


class SeededStore(Repository):
    """Seeded defects of all tenants; each tenant has at most one at a time."""

    async def read(self, keys: Keys) -> Seeded:
        """Read the stored defect."""
        return _seeded(await self._conn.command("GET", keys.seeded))

    async def note(
        self, keys: Keys, event: Event | None = None, **fields: object
    ) -> bool:
        """Set fields that are empty; False, and no change, if one was set before."""
        key = keys.seeded
        while True:
            stored = cast("bytes", await self._conn.command("GET", key) or b"")
            before = _seeded(stored)
            if any(getattr(before, name) for name in fields):
                return False
            body = before.with_(**fields).model_dump_json()
            if await write_if(
                self._conn,
                keys,
                [(["GET", key], stored)],
                ["SET", key, body, "PX", _KEEP_MS],
                audit=[event] if event else [],
            ):
                return True

    async def end(self, keys: Keys) -> None:
        """Delete it; the next one gets a new time."""
        await self._conn.command("DEL", keys.seeded)


def _seeded(stored: Reply) -> Seeded:
    return Seeded.model_validate_json(text(stored)) if stored else Seeded()


class SpotCheckCounter(Repository):
    """Number of calls put to each tenant's reviewers, by day (UTC)."""

    async def take(self, keys: Keys, most: int) -> bool:
        """Count one more call for today; False if the limit is reached.

        If the process dies before the call is put to reviewers, the count stays: they
        get fewer calls, never more.
        """
        now_ms = await self._conn.now_ms(keys.outbox)
        key = keys.spot_checks(now_ms // _DAY_MS)
        count, _ = await self._conn.transaction(
            ["INCR", key], ["PEXPIRE", key, 2 * _DAY_MS]
        )
        return number(count) <= most
