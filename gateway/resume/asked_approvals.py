"""Read the approvals that a thread waits for while its checkpoint is read.

Which approvals a thread asks about stands in its checkpoint. The process that left it
waiting remembers that, so that both can be read at the same time after a decision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from twokey.gateway.approvals.record import Approval, approval_of
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.resume.questions import asked_items
from twokey.gateway.resume.run_events import ThreadRef
from twokey.gateway.resume.runner import PendingInterrupt
from twokey.gateway.store.store import Store

MOST_THREADS: Final = 2_000
"""Of how many threads it is remembered at most what they asked last."""

MOST_READ: Final = 8
"""Approvals of one thread that are read ahead at most: a turn has one."""


class AskedApprovals:
    """What threads asked about when this process left them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_run = OrderedDict[tuple[str, str], tuple[str, ...]]()

    def note(self, at: ThreadRef, pending: Sequence[PendingInterrupt]) -> None:
        """Remember what a thread asks about now."""
        place = (at.keys.shard, at.run)
        self._by_run.pop(place, None)
        found: dict[str, None] = {}
        for item_id in sorted(asked_items(pending)):
            try:
                found[approval_of(item_id)[0]] = None
            except ValueError:
                continue
        if found:
            self._by_run[place] = tuple(found)[:MOST_READ]
        while len(self._by_run) > MOST_THREADS:
            self._by_run.popitem(last=False)

    async def read(self, at: ThreadRef) -> dict[str, Approval]:
        """Read what a thread asked about, without what cannot be read.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        found: dict[str, Approval] = {}
        for approval_id in self._by_run.get((at.keys.shard, at.run), ()):
            try:
                loaded = await self._store.approvals.load(approval_id)
            except (CorruptRecord, NewerRecord):
                continue  # whoever needs it reads it again, and says so
            if loaded is not None:
                found[approval_id] = loaded.approval
        return found
