"""Metrics of a tenant: recomputed from the audit log, and kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, tzinfo

from keyturn.gateway.metrics.fold import EVERYTHING, Metrics, Selection
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service import audit_reading
from keyturn.gateway.service.tenant_service import PolicyService, TenantService
from keyturn.gateway.store.readers import Backlog, backlog
from keyturn.gateway.store.store import Store

OTHER = "other"
"""The label of every tool that the policy does not list."""

_SLACK_MS = 60_000
"""An event may be written so much later than its own time, and is read all the same."""


RUNS_BEGAN_MS = 7 * 86_400_000
"""How long before a period the runs that end in it may have begun."""


class StatisticsService(TenantService):
    """The metrics of one tenant."""

    async def metrics(
        self,
        selected: Selection = EVERYTHING,
        zone: tzinfo = UTC,
        *,
        has_runs: bool = True,
    ) -> Metrics:
        """Return what happened in a period, from the audit log.

        Args:
            selected: which period, tool, tier and agent.
            zone: whose days and hours.
            has_runs: whether runs are asked for: the log is then read from a week
                before, where they may have begun.

        Raises:
            StoreUnavailable: when there is no store.
        """
        found = Metrics(selected, zone)
        until_ms = selected.until_ms
        log = audit_reading.entries(
            self._store,
            self._tenant,
            since_ms=max(0, selected.since_ms - (RUNS_BEGAN_MS if has_runs else 0)),
            # The log is found by the time of its entries; `Metrics` asks each event.
            until_ms=None if until_ms is None else until_ms + _SLACK_MS,
        )
        async for event in log:
            found.add(event)
        return found


class LiveMetrics(PolicyService):
    """The metrics of one tenant since `begin`, by the same fold.

    Nothing runs beside it: each look reads what was logged since the one before.
    Tools are counted by their `label`.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._metrics = Metrics()
        self._read_to = "0-0"
        self._reading = asyncio.Lock()

    def label(self, tool: str) -> str:
        """Return the name of a tool that the policy lists, else ``OTHER``."""
        # An agent may name a tool as it likes, also by a
        # secret, or otherwise each time.
        policy = self._policy()
        agents = policy.agents.values()
        is_listed = tool in policy.tools or any(tool in one.tools for one in agents)
        return tool if is_listed else OTHER

    async def begin(self) -> None:
        """Count from now on, and not what was logged before.

        Raises:
            StoreUnavailable: when there is no store.
        """
        self._read_to = await self._store.audit(self._keys).end()

    async def outbox(self) -> Backlog:
        """Return how long the tenant's outbox is.

        Raises:
            StoreUnavailable: when there is no store.
        """
        return await backlog(self._store.conn, self._keys)

    async def look(self) -> Metrics:
        """Return what happened until now.

        Raises:
            StoreUnavailable: when there is no store; the next look goes on from here.
        """
        # Two looks side by side would count the same entries twice.
        async with self._reading:
            log = self._store.audit(self._keys)
            async for event in log.entries(after=self._read_to):
                self._read_to = event.seq
                if event.tenant == self._tenant:
                    self._metrics.add(event.with_(tool=self.label(event.tool)))
        return self._metrics
