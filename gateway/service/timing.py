"""Let reviewers give an approval more time, and say that they are on it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.approvals import retiming
from gateway.approvals.changes import Change
from gateway.approvals.decisions import Refusal, Reviewer, Unknown
from gateway.approvals.record import Approval
from gateway.store.changing import Loaded, Write
from gateway.store.store import Store


class TimeService:
    """What people may do about the time of an approval.

    Args:
        store: where everything is kept.
        tenant: whose approvals these are.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant

    async def extend(self, approval_id: str, reviewer: Reviewer) -> Change | Refusal:
        """Give an approval more time; see `gateway.approvals.retiming.extend`.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        return await self._change(
            approval_id,
            lambda approval, now_ms: retiming.extend(approval, reviewer, now_ms=now_ms),
        )

    async def take(self, approval_id: str, reviewer: Reviewer) -> Change | Refusal:
        """Say who is on it; see `gateway.approvals.retiming.take`.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        return await self._change(
            approval_id,
            lambda approval, now_ms: retiming.take(approval, reviewer, now_ms=now_ms),
        )

    async def _change(
        self, approval_id: str, change: Callable[[Approval, int], Change | Refusal]
    ) -> Change | Refusal:
        async def compute(loaded: Loaded) -> Write | Refusal:
            if loaded.approval.tenant != self._tenant:
                return Unknown()
            found = change(loaded.approval, loaded.now_ms)
            return Write(found) if isinstance(found, Change) else found

        found = await self._store.approvals.change(approval_id, compute)
        if found is None:
            return Unknown()
        return found.change if isinstance(found, Write) else found
