"""Read the audit log of a tenant."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.store import Store


async def entries(
    store: Store, tenant: str, *, since_ms: int = 0, until_ms: int | None = None
) -> AsyncGenerator[Event]:
    """Yield the entries of a tenant, oldest first; see `AuditLog.entries`."""
    log = store.audit(store.keys_of_tenant(tenant))
    async with aclosing(log.entries(since_ms=since_ms, until_ms=until_ms)) as found:
        async for event in found:
            if event.tenant == tenant:
                yield event


async def newest(store: Store, tenant: str, limit: int) -> AsyncGenerator[Event]:
    """Yield the entries of a tenant, newest first, of those that are looked at.

    At most ``limit`` are; see `AuditLog.newest`.
    """
    log = store.audit(store.keys_of_tenant(tenant))
    async with aclosing(log.newest(limit)) as found:
        async for event in found:
            if event.tenant == tenant:
                yield event
