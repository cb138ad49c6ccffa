"""Read the audit log of a tenant: events, an export as JSON, and metrics.

Metrics are recomputed from the log, or kept up to date from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, tzinfo

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.evidence import redacted
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.metrics.fold import EVERYTHING, Metrics, Selection
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.tenant_service import PolicyService, TenantService
from keyturn.gateway.store.readers import Backlog, backlog
from keyturn.gateway.store.store import Store

OTHER = "other"
"""The label of every tool that the policy does not list."""

_SLACK_MS = 60_000
"""Most milliseconds between an event's time and its entry, when a period is read."""

RUNS_BEGAN_MS = 7 * 86_400_000
"""Milliseconds before a period in which the runs that end in it may have begun."""

_KEPT = 500
_PAGE = 100


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
    """Yield the entries of a tenant among the ``limit`` newest ones, newest first.

    See `AuditLog.newest`.
    """
    log = store.audit(store.keys_of_tenant(tenant))
    async with aclosing(log.newest(limit)) as found:
        async for event in found:
            if event.tenant == tenant:
                yield event


async def security_events(
    store: Store, tenant: str, *, since_ms: int = 0
) -> AsyncGenerator[Event]:
    """Yield the security events of a tenant, oldest first; see `SecurityEvents`.

    Raises:
        StoreUnavailable: when the store does not answer, or the audit log is not whole.
    """
    log = entries(store, tenant, since_ms=since_ms)
    async with aclosing(log) as found:
        async for event in found:
            if event.name is EventName.SECURITY_DETECTED:
                yield event


class Exporter(TenantService):
    """Read the audit log of a tenant.

    Args:
        store: the store with the log.
        tenant: the tenant.
        has_arguments: add the arguments of calls whose approvals still exist, redacted
            as on their cards.
    """

    def __init__(
        self, store: Store, *, tenant: str = "default", has_arguments: bool = True
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._has_arguments = has_arguments
        self._approvals: dict[str, Approval | None] = {}

    async def rows(
        self, *, since_ms: int = 0, until_ms: int | None = None
    ) -> AsyncGenerator[JsonObject]:
        """Yield one JSON object for each event, oldest first; `replay` reads them.

        Args:
            since_ms: start of the period, in Unix milliseconds.
            until_ms: end of the period, exclusive; None for now.

        Raises:
            StoreUnavailable: when there is no store.
        """
        log = entries(self._store, self._tenant, since_ms=since_ms, until_ms=until_ms)
        async for page in _pages(log):
            if self._has_arguments:
                await self._read(page)
            for event in page:
                yield self._row(event)

    def _row(self, event: Event) -> JsonObject:
        row: JsonObject = event.model_dump(mode="json", exclude_defaults=True)
        call = self._call(event.item) if self._has_arguments else None
        return row if call is None else {**row, "call": call}

    def _call(self, item_id: str) -> JsonObject | None:
        """Return the requested call; None when its record no longer exists."""
        named = _named(item_id)
        if named is None:
            return None
        approval_id, index = named
        approval = self._approvals.get(approval_id)
        if approval is None or index >= len(approval.items):
            return None
        item = approval.items[index]
        # As requested and not as edited: `replay` evaluates the request.
        asked = redacted(item.requested_args, item.redact)
        requester = approval.requester.user if approval.requester else ""
        return {"args": asked, "requester": requester}

    async def _read(self, page: Sequence[Event]) -> None:
        """Read the approvals of these events that are not known yet."""
        # Events of one approval are near each other, so a full cache is simply emptied.
        if len(self._approvals) >= _KEPT:
            self._approvals.clear()
        named = filter(None, (_named(event.item) for event in page))
        ids = dict.fromkeys(one for one, _ in named if one not in self._approvals)
        self._approvals.update(dict.fromkeys(ids))
        # A corrupt record must not hide the rest of the log.
        for loaded in await self._store.approvals.load_each(ids):
            approval = loaded.approval
            if approval.tenant == self._tenant:
                self._approvals[approval.id] = approval


async def _pages(log: AsyncGenerator[Event]) -> AsyncGenerator[list[Event]]:
    page: list[Event] = []
    async for event in log:
        page.append(event)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def _named(item_id: str) -> tuple[str, int] | None:
    """Return the approval of an item and its index; None for a malformed id."""
    try:
        return approval_of(item_id)
    except ValueError:
        return None


class StatisticsService(TenantService):
    """The metrics of one tenant."""

    async def metrics(
        self,
        selected: Selection = EVERYTHING,
        zone: tzinfo = UTC,
        *,
        has_runs: bool = True,
    ) -> Metrics:
        """Return the metrics of a period, from the audit log.

        Args:
            selected: period, tool, tier and agent.
            zone: time zone of days and hours.
            has_runs: include runs. The log is then read from a week before the period,
                because runs may have begun there.

        Raises:
            StoreUnavailable: when there is no store.
        """
        found = Metrics(selected, zone)
        until_ms = selected.until_ms
        log = entries(
            self._store,
            self._tenant,
            since_ms=max(0, selected.since_ms - (RUNS_BEGAN_MS if has_runs else 0)),
            # The log is read by the time of its entries; `Metrics` uses event times.
            until_ms=None if until_ms is None else until_ms + _SLACK_MS,
        )
        async for event in log:
            found.add(event)
        return found


class LiveMetrics(PolicyService):
    """The metrics of one tenant since `begin`, by the same fold.

    There is no background task: each look reads the entries since the one before. Tools
    are counted by their `label`.
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
        # An agent may use any tool name, even a secret or a new one each time.
        policy = self._policy()
        agents = policy.agents.values()
        is_listed = tool in policy.tools or any(tool in one.tools for one in agents)
        return tool if is_listed else OTHER

    async def begin(self) -> None:
        """Count from now on, without earlier entries.

        Raises:
            StoreUnavailable: when there is no store.
        """
        self._read_to = await self._store.audit(self._keys).end()

    async def outbox(self) -> Backlog:
        """Return the backlog of the tenant's outbox.

        Raises:
            StoreUnavailable: when there is no store.
        """
        return await backlog(self._store.conn, self._keys)

    async def look(self) -> Metrics:
        """Return the metrics until now.

        Raises:
            StoreUnavailable: when there is no store; the next look continues from here.
        """
        # Two concurrent looks would count the same entries twice.
        async with self._reading:
            log = self._store.audit(self._keys)
            async for event in log.entries(after=self._read_to):
                self._read_to = event.seq
                if event.tenant == self._tenant:
                    self._metrics.add(event.with_(tool=self.label(event.tool)))
        return self._metrics
