"""Read whole streams of a shard: what was announced, and the audit log."""

from __future__ import annotations

from twokey.gateway.approvals.events import Event
from twokey.gateway.store.audit_log import AuditLog
from twokey.gateway.store.connection import Connection, entries
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.outbox import event_in


async def audit_entries(conn: Connection, keys: Keys) -> list[Event]:
    """Return the audit entries of a shard, oldest first."""
    return [event async for event in AuditLog(conn, keys, None).entries()]


async def announced(conn: Connection, keys: Keys) -> list[Event]:
    """Return what was announced in a shard, oldest first, read or not."""
    return [
        event_in(conn, keys, entry)
        for entry in entries(await conn.command("XRANGE", keys.outbox, "-", "+"))
    ]
