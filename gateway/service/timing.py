"""Let reviewers give an approval more time, and say that they are on it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.approvals import timing
from gateway.approvals.decisions import Expired, Refusal, Reviewer, Unknown
from gateway.approvals.record import Approval
from gateway.approvals.timing import Retimed
from gateway.errors import StoreUnavailable
from gateway.store.store import Store

_ATTEMPTS = 16


class TimeService:
    """What people may do about the time of an approval.

    Args:
        store: where everything is kept.
        tenant: whose approvals these are.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        self._store = store
        self._tenant = tenant

    async def extend(self, approval_id: str, reviewer: Reviewer) -> Retimed | Refusal:
        """Give an approval more time; see `gateway.approvals.timing.extend`.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        return await self._change(
            approval_id,
            lambda approval, now_ms: timing.extend(approval, reviewer, now_ms=now_ms),
        )

    async def take(self, approval_id: str, reviewer: Reviewer) -> Retimed | Refusal:
        """Say who is on it; see `gateway.approvals.timing.take`.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        return await self._change(
            approval_id,
            lambda approval, now_ms: timing.take(approval, reviewer, now_ms=now_ms),
        )

    async def _change(
        self, approval_id: str, change: Callable[[Approval, int], Retimed | Refusal]
    ) -> Retimed | Refusal:
        for _ in range(_ATTEMPTS):
            loaded = await self._store.approvals.load(approval_id)
            if loaded is None or loaded.approval.tenant != self._tenant:
                return Unknown()
            before = loaded.approval
            result = change(before, loaded.now_ms)
            if not isinstance(result, Retimed):
                return result
            word = await self._store.timers.retime(before, result)
            if word == "done":
                return result
            if word == "gone":
                return Unknown()
            if word == "expired":
                return Expired(expires_at_ms=before.expires_at_ms)
        raise StoreUnavailable(
            "Too many people changed this at once; nothing of yours was recorded. "
            "Please try again."
        )
