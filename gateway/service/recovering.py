"""End calls, or mark them in doubt, after the store or checkpoints were restored."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass

from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.recovering import doubt_restored, end_with_thread
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

PAGE = 200
"""How many approvals are read before others may use the store again."""

Recover = Callable[[Approval, Item, int], Change | None]


@dataclass(frozen=True)
class Found:
    """One call that recovery changes, as it stood and as it stands then."""

    approval: Approval
    item: Item
    was: Item


class RecoveryService(TenantService):
    """Change records after a loss or a restore; each change is one atomic write."""

    async def end_thread(self, run_ref: RunRef) -> list[Found]:
        """End what waits in a run whose thread is gone."""
        approvals = self._store.approvals
        keys = self._keys_of(run_ref.agent)
        ids = await approvals.unfinished_of_run(keys, self._tenant, run_ref)
        return [
            found for one in ids for found in await self._each(one, end_with_thread)
        ]

    async def doubt_all(
        self, part: Keys | None = None, *, is_dry: bool = False
    ) -> list[Found]:
        """Doubt everything in a store that was restored from an older copy.

        Args:
            part: of the tenant, which was restored; None for all of them.
            is_dry: only say what would change.
        """
        return [
            found
            async for approval in self.unfinished(part)
            for found in await self._each(approval.id, doubt_restored, is_dry=is_dry)
        ]

    async def unfinished(self, part: Keys | None = None) -> AsyncGenerator[Approval]:
        """Yield the tenant's approvals in which something is still to happen.

        They are listed first, because what is done to one may end it.
        """
        # By the index of deadlines: what is in doubt already is not in it, and needs no
        # doubt.
        ids = [
            one
            for keys in (self._parts if part is None else (part,))
            for one in await self._store.approvals.scheduled(keys)
        ]
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            for loaded in await self._store.approvals.load_each(page):
                if loaded.approval.tenant == self._tenant:
                    yield loaded.approval

    async def _each(
        self, approval_id: str, recover: Recover, *, is_dry: bool = False
    ) -> list[Found]:
        found: list[Found] = []
        for loaded in await self._store.approvals.load_each([approval_id]):
            for item in loaded.approval.items:
                one = await self._item(approval_id, item.index, recover, is_dry=is_dry)
                found += [] if one is None else [one]
        return found

    async def _item(
        self, approval_id: str, index: int, recover: Recover, *, is_dry: bool
    ) -> Found | None:
        found: Found | None = None

        async def compute(loaded: Loaded) -> Write | None:
            nonlocal found
            was = loaded.approval.items[index]
            change = recover(loaded.approval, was, loaded.now_ms)
            found = None
            if change is None:
                return None
            found = Found(change.approval, change.approval.items[index], was)
            return None if is_dry else Write(change)

        # `load_each` has logged it a moment ago; the others are to be recovered all the
        # same.
        with suppress(NewerRecord, CorruptRecord):
            written = await self._store.approvals.change(approval_id, compute)
            if written and found:
                logger.warning(
                    "item.recovered item=%s agent=%s thread=%s state=%s",
                    found.item.id,
                    found.approval.run_ref.agent,
                    found.approval.run_ref.thread,
                    found.item.state,
                )
        return found
