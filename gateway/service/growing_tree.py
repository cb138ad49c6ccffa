"""State of an audit tree that grows: its head, and what is signed of it."""

from __future__ import annotations

from twokey.gateway.store.audit_index import Seen
from twokey.gateway.store.audit_tree import LogName, TreeRecord
from twokey.gateway.store.readers import EntryId
from twokey.gateway.trust.merkle_tree import TreeHead

CHECKPOINT_ENTRIES = 100
CHECKPOINT_S = 60.0


class GrowingTree:
    """The tree as its writer has it.

    Attributes:
        name: of the log.
        head: over all of its entries.
        last: place of the newest.
        signed: how many entries the newest checkpoint has.
        signed_last: place of the last of them.
        seen: what entries say of approvals that the index does not have yet.
    """

    def __init__(
        self, name: LogName, head: TreeHead, last: EntryId, *, signed: int
    ) -> None:
        self.name = name
        self.head = head
        self.last = self.signed_last = last
        self.signed = signed
        self.seen: dict[str, Seen] = {}
        self._since_s = 0.0

    @property
    def after(self) -> str:
        """Return behind which place the next entry stands."""
        return f"{self.last[0]}-{self.last[1]}"

    def add(self, records: list[TreeRecord], now: float) -> None:
        """Add records."""
        if self.head.size == self.signed:
            self._since_s = now
        for one in records:
            self.head.append(one.leaf)
        self.last = records[-1].place

    def is_signed(self) -> None:
        """Note that there is a checkpoint over all entries."""
        self.signed, self.signed_last = self.head.size, self.last

    def is_due(self, now: float, *, is_last: bool) -> bool:
        """Return whether a checkpoint is due."""
        left = self.head.size - self.signed
        is_late = left > 0 and now - self._since_s >= CHECKPOINT_S
        return self.is_full or is_late or (is_last and left > 0)

    @property
    def is_full(self) -> bool:
        """Return whether as many entries wait for a checkpoint as ever should."""
        return self.head.size - self.signed >= CHECKPOINT_ENTRIES
