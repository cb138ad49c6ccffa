"""Let reviewers extend an approval's deadline or mark that they handle it."""

from __future__ import annotations

from collections.abc import Callable

from twokey.gateway.approvals import deadline_changes
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Refusal, Reviewer, Unknown
from twokey.gateway.approvals.record import Approval
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.atomic_write import Loaded, Write


class TimeService(TenantService):
    """What people may do about the time of an approval.

    Both methods raise `StoreUnavailable` when it is not known to be written.
    """

    async def extend(self, approval_id: str, reviewer: Reviewer) -> Change | Refusal:
        """Extend the deadline; see `deadline_changes.extend`."""
        return await self._change(approval_id, reviewer, deadline_changes.extend)

    async def acknowledge(
        self, approval_id: str, reviewer: Reviewer
    ) -> Change | Refusal:
        """Mark who handles it; see `deadline_changes.acknowledge`."""
        return await self._change(approval_id, reviewer, deadline_changes.acknowledge)

    async def _change(
        self,
        approval_id: str,
        reviewer: Reviewer,
        change: Callable[[Approval, Reviewer, int], Change | Refusal],
    ) -> Change | Refusal:
        async def compute(loaded: Loaded) -> Write | Refusal:
            # As for an id that does not exist: another tenant's is not to be told apart
            # from it.
            if loaded.approval.tenant != self._tenant:
                return Unknown()
            found = change(loaded.approval, reviewer, loaded.now_ms)
            return Write(found) if isinstance(found, Change) else found

        found = await self._store.approvals.change(approval_id, compute)
        if found is None:
            return Unknown()
        return found.change if isinstance(found, Write) else found
