"""Count each tenant's spot checks per day, to enforce a daily limit."""

from __future__ import annotations

from keyturn.gateway.store.connection import Connection, number
from keyturn.gateway.store.keys import Keys

_DAY_MS = 86_400_000


class SpotCheckCounter:
    """How many calls each tenant's people were asked about, by day (UTC)."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def take(self, keys: Keys, most: int) -> bool:
        """Return whether one more may be asked today, and count it.

        What is counted and then not asked, because the process ends in between, is
        lost: people are asked about fewer calls, never about more.
        """
        now_ms = await self._conn.now_ms(keys.outbox)
        key = keys.spot_checks(now_ms // _DAY_MS)
        count, _ = await self._conn.transaction(
            ["INCR", key], ["PEXPIRE", key, 2 * _DAY_MS]
        )
        return number(count) <= most
