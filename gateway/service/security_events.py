"""List the security events of a tenant."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.service import tenant_log
from keyturn.gateway.store.store import Store


async def security_events(
    store: Store, tenant: str, *, since_ms: int = 0
) -> AsyncGenerator[Event]:
    """Yield what was noticed of a tenant, oldest first; see `SecurityEvents`.

    Raises:
        StoreUnavailable: when the store does not answer, or the audit log is not whole.
    """
    log = tenant_log.entries(store, tenant, since_ms=since_ms)
    async with aclosing(log) as found:
        async for event in found:
            if event.name is EventName.SECURITY_DETECTED:
                yield event
