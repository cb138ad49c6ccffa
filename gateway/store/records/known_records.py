"""Reject records older than those this process has seen.

An attacker with write access to Redis can restore an older record, or a sealed change
that lost a race. A process that has seen a newer record rejects both. For records that
a process has not seen, the ledger (`keyturn.gateway.store.connection.ledger`) prevents
a second execution.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import ForgedRecord
from keyturn.gateway.store.records import codec
from keyturn.gateway.store.records.codec import REPLAYED, RecordSeals, Stored

MOST_REVS: Final = 10_000
"""Number of approvals whose latest revision is remembered: about 3 MB."""


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
    """The revisions of approvals that this process recently read or wrote.

    Args:
        seals: seals of the records.
    """

    def __init__(self, seals: RecordSeals) -> None:
        self.seals = seals
        self._lasting = OrderedDict[str, Lasting]()
        # Event loops in several threads share one store.
        self._lock = threading.Lock()

    def lasting(self, approval_ids: Iterable[str]) -> dict[str, Lasting]:
        """Return the latest known revisions of approvals.

        Call it before a read, and pass the result to `parsed` afterwards: writes during
        the read may be newer.
        """
        return {one: self._lasting.get(one, NOTHING) for one in approval_ids}

    def parsed(self, approval_id: str, stored: Stored, lasting: Lasting) -> Approval:
        """Return a record that was just read.

        Args:
            approval_id: id of the approval.
            stored: the stored form.
            lasting: result of `lasting` before the read.

        Raises:
            ForgedRecord: when its seal is invalid, or when a newer or competing version
                is known.
            CorruptRecord: when it is corrupt.
        """
        approval = codec.approval(approval_id, stored, self.seals)
        if lasting.is_replayed(approval.rev, stored.seal):
            raise ForgedRecord(approval_id, REPLAYED, is_replayed=True)
        return approval

    def remember(self, approval: Approval, stored: Stored) -> None:
        """Remember a version that can no longer be lost."""
        with self._lock:
            was = self._lasting.pop(approval.id, NOTHING)
            is_newer = approval.rev > was.rev
            now = Lasting(approval.rev, stored.seal) if is_newer else was
            self._lasting[approval.id] = now
            if len(self._lasting) > MOST_REVS:
                self._lasting.popitem(last=False)
