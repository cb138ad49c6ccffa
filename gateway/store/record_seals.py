"""Seal the record of an approval: all that is stored of it, in one field of its head.

Whoever can write to the server could otherwise let a call run, or change what people
and agents are told. The seal is over every field of the head by its name, and over the
document, for the place of this approval's id. Each change computes the seal of the next
version before it is written, so that no script has to know the key.

Not sealed is what a script changes between two versions:

- ``<i>:u``, until when a claim stands, which heartbeats move. Only an older one can be
  written instead, or one that never ends. A claim that seems to have ended is taken
  over by another attempt only where the tool may be repeated; any other call is in
  doubt then, and runs again only when people say so. The result of the attempt that
  still runs counts in any case (its fence is sealed).
- ``checked``, when Slack confirmed who gave a standing approval, has a seal of its own.
  An older one ends the approval sooner, never later.
- ``quarantined``, when a record was set aside, has one, too: what others write there
  is announced like any other forgery. The record's own seal is wrong from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyturn.gateway.errors import CorruptRecord, ForgedRecord
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.encryption import RecordEncryption
from keyturn.gateway.trust.seals import Purpose, SealKeys, seal_keys

SEAL = "h"
"""Field of the head that holds the seal."""

CHECKED, CHECKED_SEAL = "checked", "checked_seal"
"""When Slack confirmed the givers of a standing approval, and the seal of that."""

QUARANTINED, QUARANTINE_SEAL = "quarantined", "quarantine_seal"
"""When a record was set aside, and the seal of that."""

_RECORD = "record"
_UNSEALED = frozenset({SEAL, CHECKED, CHECKED_SEAL})
_CLAIM_END = ":u"

NO_SEAL = "it has no seal"
WRONG_SEAL = "its seal does not fit it"
WRONG_CHECK = "when its givers were confirmed is not sealed"
REPLAYED = "it is older than what is known of it"

Fields = Mapping[str, bytes]


@dataclass(frozen=True)
class Stored:
    """A record as it is stored: its head and its document."""

    head: Fields
    document: bytes

    @property
    def seal(self) -> bytes:
        """Return its seal; empty for a record without one."""
        return self.head.get(SEAL, b"")


class RecordSeals:
    """Makes and checks the seals of the records of one store.

    Args:
        conn: the store.

    Attributes:
        encryption: of what is sealed.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.encryption = RecordEncryption(conn)

    @property
    def _keys(self) -> SealKeys:
        return seal_keys(self._conn.secrets, Purpose.RECORDS)

    def of(self, approval_id: str, stored: Stored) -> bytes:
        """Return the seal of a record."""
        return self._keys.make(_RECORD, (approval_id,), _content(stored))

    def sealed(self, approval_id: str, head: Fields, document: bytes) -> Stored:
        """Return a record with its seal."""
        seal = self.of(approval_id, Stored(head, document))
        return Stored({**head, SEAL: seal}, document)

    def of_moment(self, approval_id: str, field: str, at: str) -> bytes:
        """Return the seal of a moment that stands in a field of its own."""
        return self._keys.make(field, (approval_id,), at.encode())

    def is_quarantined(self, approval_id: str, head: Fields) -> bool:
        """Return whether we set a record aside before."""
        return self._is_moment(approval_id, head, QUARANTINED, QUARANTINE_SEAL)

    def check(self, approval_id: str, stored: Stored) -> None:
        """Accept only what was sealed as this approval, with a known key.

        Raises:
            ForgedRecord: it was not.
            CorruptRecord: it was set aside before.
        """
        place, head = (approval_id,), stored.head
        if self.is_quarantined(approval_id, head):
            raise CorruptRecord(approval_id)
        if SEAL not in head:
            raise ForgedRecord(approval_id, NO_SEAL)
        if not self._keys.is_valid(stored.seal, _RECORD, place, _content(stored)):
            raise ForgedRecord(approval_id, WRONG_SEAL)
        is_checked = CHECKED in head
        if is_checked and not self._is_moment(approval_id, head, CHECKED, CHECKED_SEAL):
            raise ForgedRecord(approval_id, WRONG_CHECK)

    def _is_moment(self, approval_id: str, head: Fields, name: str, seal: str) -> bool:
        at, made = head.get(name, b""), head.get(seal, b"")
        return self._keys.is_valid(made, name, (approval_id,), at)


def _content(stored: Stored) -> bytes:
    head = stored.head
    names = [
        one for one in sorted(head) if one not in _UNSEALED and one[-2:] != _CLAIM_END
    ]
    rows = [_row(name.encode(), head[name]) for name in names]
    return b"".join([b"%d;" % len(rows), *rows, stored.document])


def _row(name: bytes, value: bytes) -> bytes:
    # With its length before each name and value, and the number of fields before all of
    # them: no two records give the same bytes.
    return b"%d:%b%d:%b" % (len(name), name, len(value), value)
