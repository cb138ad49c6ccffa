"""Cache approvals, and reject records older than those this process has seen.

An attacker with write access to Redis can restore an older record, or a sealed change
that lost a race. A process that has seen a newer record rejects both. For records that
a process has not seen, the ledger (`keyturn.gateway.store.connection.ledger`) prevents
a second execution.

Parsing takes longer than reading, so unchanged records are not parsed again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import ForgedRecord
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.records.codec import REPLAYED, RecordSeals, Stored

MOST_BYTES: Final = 8_000_000
"""Approximate limit of memory for records."""

MOST_REVS: Final = 10_000
"""Number of approvals whose latest revision is remembered: about 3 MB."""

_RECORD, _ITEM = 5_000, 8_000
"""Approximate size in bytes of a parsed record, and of each item. The stored form is
packed and much smaller."""


class Lasting(NamedTuple):
    """The latest known revision of an approval; it cannot go back.

    Two competing changes of one revision are both sealed, and both are sent to the
    server. So the seal counts as well; it is None if unknown.
    """

    rev: int = 0
    seal: bytes | None = None

    def is_replayed(self, rev: int, seal: bytes) -> bool:
        """Return whether a sealed record is older, or lost the race."""
        return rev < self.rev or (rev == self.rev and self.seal not in (None, seal))


NOTHING: Final = Lasting()


class KnownRecords:
    """Approvals that this process recently read or wrote.

    Args:
        seals: seals of the records.

    Attributes:
        seals: seals of the records.
        bytes: approximate memory of the records.
    """

    def __init__(self, seals: RecordSeals) -> None:
        self.seals = seals
        self._parsed = OrderedDict[str, tuple[Stored, Approval]]()
        self._lasting = OrderedDict[str, Lasting]()
        # Event loops in several threads share one store.
        self._lock = threading.Lock()
        self.bytes = 0

    def lasting(self, approval_ids: Iterable[str]) -> dict[str, Lasting]:
        """Return the latest known revisions of approvals.

        Call it before a read, and pass the result to `parsed` afterwards: writes during
        the read may be newer.
        """
        return {one: self._lasting.get(one, NOTHING) for one in approval_ids}

    def parsed(
        self,
        approval_id: str,
        stored: Stored,
        *,
        lasting: Lasting = NOTHING,
        is_lasting: bool = False,
    ) -> Approval:
        """Return a record that was just read, parsed only if it changed.

        Args:
            approval_id: id of the approval.
            stored: the stored form.
            lasting: result of `lasting` before the read.
            is_lasting: True if this version can no longer be lost.

        Raises:
            ForgedRecord: when its seal is invalid, or when a newer or competing version
                is known.
            CorruptRecord: when it is corrupt.
        """
        was, approval = self._parsed.get(approval_id, (None, None))
        if approval is None or was != stored:
            approval = codec.approval(approval_id, stored, self.seals)
        if lasting.is_replayed(approval.rev, stored.seal):
            raise ForgedRecord(approval_id, REPLAYED, is_replayed=True)
        self._remember(approval, stored, is_lasting=is_lasting)
        return approval

    def wrote(self, loaded: Loaded) -> None:
        """Remember a written version."""
        if loaded.stored is not None:
            self._remember(loaded.approval, loaded.stored, is_lasting=True)

    def _remember(
        self, approval: Approval, stored: Stored, *, is_lasting: bool
    ) -> None:
        with self._lock:
            if is_lasting:
                was = self._lasting.pop(approval.id, NOTHING)
                is_newer = approval.rev > was.rev
                now = Lasting(approval.rev, stored.seal) if is_newer else was
                self._lasting[approval.id] = now
                if len(self._lasting) > MOST_REVS:
                    self._lasting.popitem(last=False)
            if (old := self._parsed.pop(approval.id, None)) is not None:
                self.bytes -= _size(*old)
            self._parsed[approval.id] = stored, approval
            self.bytes += _size(stored, approval)
            while self.bytes > MOST_BYTES:
                _, old = self._parsed.popitem(last=False)
                self.bytes -= _size(*old)


def _size(stored: Stored, approval: Approval) -> int:
    """Return the approximate size of a record, parsed and stored."""
    # Stored texts are packed, sometimes to a hundredth, so measure the plain ones.
    texts = sum([len(one.requested) + len(one.action) for one in approval.items])
    fields = len(stored.document) + sum(map(len, stored.head.values()))
    texts += sum(map(len, stored.rows))
    return _RECORD + _ITEM * len(approval.items) + texts + fields
