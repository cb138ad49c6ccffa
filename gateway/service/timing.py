"""Let reviewers give an approval more time, and say that they are on it."""

from __future__ import annotations

from collections.abc import Callable

from twokey.gateway.approvals import retiming
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Refusal, Reviewer, Unknown
from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.changing import Loaded, Write
from twokey.gateway.store.store import Store


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
        """Give an approval more time; see `twokey.gateway.approvals.retiming.extend`.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        return await self._change(
            approval_id,
            lambda approval, now_ms: retiming.extend(approval, reviewer, now_ms=now_ms),
        )

    async def take(self, approval_id: str, reviewer: Reviewer) -> Change | Refusal:
        """Say who is on it; see `twokey.gateway.approvals.retiming.take`.

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
