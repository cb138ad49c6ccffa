"""List past decisions, newest first, from the audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from twokey.gateway.approvals.events import BY_GATEWAY, Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.service import tenant_log
from twokey.gateway.service.away_parts import AwayParts
from twokey.gateway.service.tenant_service import TenantService

MAX_ENTRIES = 2000
"""How many audit entries one look goes back at most."""

DECIDED = frozenset(
    {
        EventName.ITEM_AUTHORIZED,
        EventName.ITEM_VOTED,
        EventName.ITEM_REJECTED,
        EventName.ITEM_ANSWERED,
        EventName.ITEM_WITHDRAWN,
        EventName.ITEM_EXPIRED,
        EventName.ITEM_RECONCILED,
    }
)
"""Events that end a person's part in a call, or its waiting."""


class PastDecisions(TenantService):
    """What people of one tenant decided, and what nobody decided in time."""

    async def newest(
        self, limit: int = MAX_ENTRIES, *, away: AwayParts | None = None
    ) -> AsyncGenerator[tuple[Event, Approval]]:
        """Yield decisions on calls that are still kept, each with its approval.

        Calls that the policy let run are left out: nobody decided them.

        Args:
            limit: how many entries are looked at.
            away: parts of the tenant that do not answer, which are left out.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        seen: dict[str, Approval | None] = {}
        log = tenant_log.newest(self._store, self._tenant, limit, away=away)
        async for event in log:
            if not _is_decision(event):
                continue
            if event.approval not in seen:
                found = await self._store.approvals.load_each([event.approval])
                seen[event.approval] = found[0].approval if found else None
            approval = seen[event.approval]
            if approval is not None and approval.tenant == self._tenant:
                yield event, approval


def _is_decision(event: Event) -> bool:
    if event.name is EventName.ITEM_AUTHORIZED and event.actor in {"", BY_GATEWAY}:
        return False  # a claim was given back; nobody decided
    return event.name in DECIDED and not event.is_auto_approved
