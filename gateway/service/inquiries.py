"""Let reviewers ask the requester about a waiting call, and record the replies."""

from __future__ import annotations

from twokey.gateway.approvals import inquiring
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Refusal, Reviewer
from twokey.gateway.approvals.inquiry import Inquiry
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.records import Person
from twokey.gateway.service.tenant_service import TenantService


class InquiryService(TenantService):
    """Questions to requesters, and their replies.

    Both methods raise `StoreUnavailable` when it is not known to be written.
    """

    async def ask(
        self, approval_id: str, call: int | None, reviewer: Reviewer, text: str
    ) -> Change | Inquiry | Refusal:
        """Add a question; see `inquiring.ask`."""

        def change(approval: Approval, now_ms: int) -> Change | Inquiry | Refusal:
            return inquiring.ask(approval, call, reviewer, text, now_ms)

        return await self._change_own(approval_id, change)

    async def reply(
        self, approval_id: str, person: Person, text: str, ts: str
    ) -> Change | Inquiry | Refusal:
        """Add a reply of the requester; see `inquiring.reply`."""

        def change(approval: Approval, now_ms: int) -> Change | Inquiry | Refusal:
            return inquiring.reply(approval, person, text, ts, now_ms)

        return await self._change_own(approval_id, change)
