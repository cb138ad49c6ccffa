"""List what waits for a tenant's reviewers, earliest deadline first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.timing import is_over
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.atomic_write import Loaded

MAX_QUEUE = 2000
"""How many waiting approvals one look at the queue reads at most."""

_PAGE = 100


class ReviewQueue(TenantService):
    """What waits for people of one tenant, whatever else its shard is busy with."""

    async def waiting(self, limit: int = MAX_QUEUE) -> AsyncGenerator[Loaded]:
        """Yield approvals with an item that waits for a person, the soonest due first.

        They are read as they are asked for, so the caller may stop early; ``limit``
        bounds how many are looked at.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        ids = await self._store.pending.soonest(self._keys, self._tenant, limit)
        # In pages: a caller that stops early has read at most a page too much.
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            for loaded in await self._store.approvals.load_each(page):
                if self._waits(loaded):
                    yield loaded

    async def read_short(self, short: str) -> list[Loaded]:
        """Return the tenant's approvals with a short id; nearly always one.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        approvals = self._store.approvals
        return await self.read_each(await approvals.with_short_id(self._keys, short))

    async def read_each(self, approval_ids: Iterable[str]) -> list[Loaded]:
        """Return those of these approvals that are there and can be read."""
        loaded = await self._store.approvals.load_each(approval_ids)
        return [one for one in loaded if one.approval.tenant == self._tenant]

    def _waits(self, loaded: Loaded) -> bool:
        approval = loaded.approval
        return (
            approval.tenant == self._tenant
            and approval.state is ApprovalState.OPEN
            and not is_over(approval, loaded.now_ms)
        )
