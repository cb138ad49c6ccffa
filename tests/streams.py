"""Read whole streams of a shard: what was announced, and the audit log."""

from __future__ import annotations

from twokey.gateway.approvals.events import Event
from twokey.gateway.store.audit_log import AuditLog
from twokey.gateway.store.connection import Connection, entries, number
from twokey.gateway.store.keys import Keys


async def audit_entries(conn: Connection, keys: Keys) -> list[Event]:
    """Return the audit entries of a shard, oldest first."""
    return [event async for event in AuditLog(conn, keys, None).entries()]


async def announced(conn: Connection, keys: Keys) -> list[Event]:
    """Return what was announced in a shard, oldest first, read or not."""
    return [
        Event.model_validate_json(entry.values["e"]).with_(
            at_ms=number(entry.values["at"]), seq=entry.id
        )
        for entry in entries(await conn.command("XRANGE", keys.outbox, "-", "+"))
    ]
