"""Read whole streams of a tenant: the outbox, and the audit log."""

from __future__ import annotations

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.audit.log import AuditLog
from keyturn.gateway.store.connection.connection import Connection, entries
from keyturn.gateway.store.events.outbox import event_in
from keyturn.gateway.store.keys import Keys


async def audit_entries(conn: Connection, keys: Keys) -> list[Event]:
    """Return the audit entries of a tenant, oldest first."""
    return [event async for event in AuditLog(conn, keys, None).entries()]


async def announced(conn: Connection, keys: Keys) -> list[Event]:
    """Return the events of a tenant, oldest first, read or not."""
    return [
        event_in(conn, keys, entry)
        for entry in entries(await conn.command("XRANGE", keys.outbox, "-", "+"))
    ]
