"""Let reviewers extend an approval's deadline or mark that they handle it."""

from __future__ import annotations

from twokey.gateway.approvals import deadline_changes
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Refusal, Reviewer
from twokey.gateway.approvals.record import Approval
from twokey.gateway.service.tenant_service import TenantService


class TimeService(TenantService):
    """What people may do about the time of an approval.

    Both methods raise `StoreUnavailable` when it is not known to be written.
    """

    async def extend(self, approval_id: str, reviewer: Reviewer) -> Change | Refusal:
        """Extend the deadline; see `deadline_changes.extend`."""

        def change(approval: Approval, now_ms: int) -> Change | Refusal:
            return deadline_changes.extend(approval, reviewer, now_ms)

        return await self._change_own(approval_id, change)

    async def acknowledge(
        self, approval_id: str, reviewer: Reviewer
    ) -> Change | Refusal:
        """Mark who handles it; see `deadline_changes.acknowledge`."""

        def change(approval: Approval, now_ms: int) -> Change | Refusal:
            return deadline_changes.acknowledge(approval, reviewer, now_ms)

        return await self._change_own(approval_id, change)
