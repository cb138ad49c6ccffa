"""Read the audit log of a tenant: of each of its parts, merged by time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from twokey.gateway.approvals.events import Event
from twokey.gateway.service.away_parts import AwayParts
from twokey.gateway.service.merging import merged
from twokey.gateway.store.readers import entry_id
from twokey.gateway.store.store import Store


async def entries(
    store: Store,
    tenant: str,
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    away: AwayParts | None = None,
) -> AsyncGenerator[Event]:
    """Yield the entries of a tenant, oldest first; see `AuditLog.entries`.

    Parts that do not answer are left out where ``away`` can tell of them.
    """
    each = [
        (keys, store.audit(keys).entries(since_ms=since_ms, until_ms=until_ms))
        for keys in store.parts_of(tenant)
    ]
    logs = [rows if away is None else away.rows(keys, rows) for keys, rows in each]
    async with aclosing(merged(logs, _place)) as found:
        async for event in found:
            if event.tenant == tenant:
                yield event


async def newest(
    store: Store, tenant: str, limit: int, *, away: AwayParts | None = None
) -> AsyncGenerator[Event]:
    """Yield the entries of a tenant, newest first, of those that are looked at.

    At most ``limit`` are, others' among them; see `AuditLog.newest`. Parts that do not
    answer are left out where ``away`` can tell of them.
    """
    each = [(keys, store.audit(keys).newest(limit)) for keys in store.parts_of(tenant)]
    logs = [rows if away is None else away.rows(keys, rows) for keys, rows in each]
    left = limit
    async with aclosing(merged(logs, _back)) as found:
        async for event in found:
            if left <= 0:
                return
            left -= 1
            if event.tenant == tenant:
                yield event


def _place(event: Event) -> tuple[int, int]:
    # The id of a stream begins with its server's milliseconds.
    return entry_id(event.seq)


def _back(event: Event) -> tuple[int, int]:
    at_ms, number = entry_id(event.seq)
    return -at_ms, -number
