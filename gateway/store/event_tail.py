"""Read what happened to a tenant from a place on, as often as anybody likes.

It is read from the audit log and not from the outbox, which forgets what its readers
have taken: who was away for a while goes on where they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection import (
    Connection,
    Entry,
    entries,
    first_stream,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.outbox import event_in
from keyturn.gateway.store.readers import entry_id

START = "0-0"
"""The place before everything."""


class EventTail:
    """The events of one tenant, in order.

    Args:
        conn: to the store.
        keys: of the tenant.
    """

    def __init__(self, conn: Connection, keys: Keys) -> None:
        self._conn = conn
        self._keys = keys
        self._name = keys.audit

    async def newest(self) -> str:
        """Return the place of the newest event."""
        reply = await self._conn.command("XREVRANGE", self._name, "+", "-", "COUNT", 1)
        found = entries(reply)
        return found[0].id if found else START

    async def keeps(self, place: str) -> bool:
        """Return whether nothing behind a place is known to be dropped."""
        reply = await self._conn.command("XRANGE", self._name, "-", "+", "COUNT", 1)
        oldest = entries(reply)
        return bool(oldest) and entry_id(oldest[0].id) <= entry_id(place)

    async def read(
        self, after: str, *, block_ms: int | None = None, limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return what came after a place, and the place that was read to.

        Waits up to ``block_ms`` for the first event; None does not wait. What is no
        event is left out.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        waits: list[str | int] = [] if block_ms is None else ["BLOCK", block_ms]
        reply = await self._conn.command(
            "XREAD", "COUNT", limit, *waits, "STREAMS", self._name, after
        )
        found = first_stream(reply)
        return self._events(found), found[-1].id if found else after

    def _events(self, found: Sequence[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            # Readers of the log itself report what cannot be read.
            with suppress(KeyError, ValueError):
                read.append(event_in(self._conn, self._keys, entry))
        return read
