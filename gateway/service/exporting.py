"""Export the audit log as JSON, one object per event."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.evidence import redacted
from twokey.gateway.approvals.record import Approval, approval_of
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.service import tenant_log
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.store import Store

_KEPT = 500


class Exporter(TenantService):
    """Read the audit log of a tenant.

    Args:
        store: where it is.
        tenant: whose.
        has_arguments: add the arguments of calls whose approvals are still kept,
            hidden where the policy hid them on cards.
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
            since_ms: the earliest time, in Unix milliseconds.
            until_ms: the time before which it happened; None for now.

        Raises:
            StoreUnavailable: when there is no store.
        """
        log = tenant_log.entries(
            self._store, self._tenant, since_ms=since_ms, until_ms=until_ms
        )
        async for event in log:
            yield await self._row(event)

    async def _row(self, event: Event) -> JsonObject:
        row: JsonObject = event.model_dump(mode="json", exclude_defaults=True)
        call = await self._call(event.item) if self._has_arguments else None
        return row if call is None else {**row, "call": call}

    async def _call(self, item_id: str) -> JsonObject | None:
        """Return what the agent asked for; None when it is no longer kept."""
        try:
            approval_id, index = approval_of(item_id)
        except ValueError:
            return None
        approval = await self._approval(approval_id)
        if approval is None or index >= len(approval.items):
            return None
        item = approval.items[index]
        # As asked and not as edited: `replay` evaluates what the agent asked for.
        asked = redacted(item.requested_args, item.redact)
        requester = approval.requester.user if approval.requester else ""
        return {"args": asked, "requester": requester}

    async def _approval(self, approval_id: str) -> Approval | None:
        if approval_id not in self._approvals:
            # Events of one approval stand near each other, so a full cache is simply
            # emptied.
            if len(self._approvals) >= _KEPT:
                self._approvals.clear()
            # A corrupt record must not hide the rest of the log.
            found = await self._store.approvals.load_each([approval_id])
            approval = found[0].approval if found else None
            is_ours = approval is not None and approval.tenant == self._tenant
            self._approvals[approval_id] = approval if is_ours else None
        return self._approvals[approval_id]
