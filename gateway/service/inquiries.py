"""Let reviewers ask the requester about a waiting call, and record the replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twokey.gateway.approvals import inquiring
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Refusal, Reviewer, Unknown
from twokey.gateway.approvals.inquiry import Inquiry
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.records import Person
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.atomic_write import Loaded, Write

Other = TypeVar("Other")


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

        return await self._change(approval_id, change)

    async def reply(
        self, approval_id: str, person: Person, text: str, ts: str
    ) -> Change | Inquiry | Refusal:
        """Add a reply of the requester; see `inquiring.reply`."""

        def change(approval: Approval, now_ms: int) -> Change | Inquiry | Refusal:
            return inquiring.reply(approval, person, text, ts, now_ms)

        return await self._change(approval_id, change)

    async def _change(
        self, approval_id: str, change: Callable[[Approval, int], Change | Other]
    ) -> Change | Other | Unknown:
        async def compute(loaded: Loaded) -> Write | Other | Unknown:
            # As for an id that does not exist: another tenant's is not to be told apart
            # from it.
            if loaded.approval.tenant != self._tenant:
                return Unknown()
            found = change(loaded.approval, loaded.now_ms)
            return Write(found) if isinstance(found, Change) else found

        found = await self._store.approvals.change(approval_id, compute)
        if found is None:
            return Unknown()
        return found.change if isinstance(found, Write) else found
