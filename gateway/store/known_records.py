"""Remember how far approvals had come, and their records as this process had them last.

Whoever can write to Redis can put back an older record, or a sealed change that lost a
race. A process that read or wrote a newer one refuses both. What this process does not
know runs nothing twice all the same: see `keyturn.gateway.store.ledger`.

Parsing a record takes longer than reading it, so an unchanged one is not parsed again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import ForgedRecord
from keyturn.gateway.store import codec
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.record_seals import REPLAYED, RecordSeals, Stored

MOST_BYTES: Final = 8_000_000
"""How much memory records take at most, about."""

MOST_REVS: Final = 10_000
"""Of how many approvals is remembered how far they had come: about 3 MB."""

_RECORD, _ITEM = 5_000, 8_000
"""About how many bytes a parsed record takes, and each item of it: many times more than
the fields that are stored of them, which are packed."""


class Lasting(NamedTuple):
    """How far an approval had come: it cannot be older, nor another one of this rev.

    Where two changes of one rev race, both were sealed, and the one that lost was sent
    to the server as well. The seal is None where it is not known.
    """

    rev: int = 0
    seal: bytes | None = None

    def is_replayed(self, rev: int, seal: bytes) -> bool:
        """Return whether a sealed record is not what an approval has come to."""
        return rev < self.rev or (rev == self.rev and self.seal not in (None, seal))


NOTHING: Final = Lasting()


class KnownRecords:
    """The approvals of one store that this process read or wrote lately.

    Args:
        seals: of the records.

    Attributes:
        seals: see above.
        bytes: how much memory the records take, about.
    """

    def __init__(self, seals: RecordSeals) -> None:
        self.seals = seals
        self._parsed = OrderedDict[str, tuple[Stored, Approval]]()
        self._lasting = OrderedDict[str, Lasting]()
        # Event loops of several threads share one store.
        self._lock = threading.Lock()
        self.bytes = 0

    def lasting(self, approval_ids: Iterable[str]) -> dict[str, Lasting]:
        """Return how far these approvals had come.

        Asked before a reading, and given to `parsed` after it: what is written while it
        is on its way may be newer.
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
        """Return a record that was read now, parsed unless it is as it was.

        Args:
            approval_id: of the approval.
            stored: what was read.
            lasting: from `lasting`, before it was read.
            is_lasting: whether what is read here cannot be lost any more.

        Raises:
            ForgedRecord: when it is not as it was sealed, or was sealed before what is
                known of it, or in place of that.
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
        """Remember what was written."""
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
    """Return about how many bytes a record takes, parsed and as it is stored."""
    # Not as they are stored: packed, a text may take a hundredth.
    texts = sum([len(one.requested) + len(one.action) for one in approval.items])
    fields = len(stored.document) + sum(map(len, stored.head.values()))
    return _RECORD + _ITEM * len(approval.items) + texts + fields
