"""Recompute metrics from the audit log."""

from __future__ import annotations

from datetime import UTC, tzinfo

from twokey.gateway.metrics.fold import EVERYTHING, Metrics, Selection
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.outbox import audit_log

_SLACK_MS = 60_000
"""An event may be written so much later than its own time, and is read all the same."""


class StatisticsService(TenantService):
    """The metrics of one tenant."""

    async def metrics(
        self, selected: Selection = EVERYTHING, zone: tzinfo = UTC
    ) -> Metrics:
        """Return what happened in a period, from the audit log.

        Raises:
            StoreUnavailable: when there is no store.
        """
        found = Metrics(selected, zone)
        until_ms = selected.until_ms
        log = audit_log(
            self._store.conn,
            self._keys,
            since_ms=selected.since_ms,
            # The log is found by the time of its entries; `Metrics` asks each event.
            until_ms=None if until_ms is None else until_ms + _SLACK_MS,
        )
        async for event in log:
            if event.tenant == self._tenant:
                found.add(event)
        return found
