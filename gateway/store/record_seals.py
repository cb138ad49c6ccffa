"""Seal an approval's record: one field of its head covers everything stored.

Otherwise an attacker with write access to the server could let a call run, or change
the texts for people and agents. The seal covers every field of the head by name, and
the document, for this approval's id. Each change computes the seal of the next version
before writing it, so scripts need no key.

Excluded are fields that scripts change between two versions:

- ``<i>:u``, the end of a claim, which heartbeats extend. An attacker can only shorten
  or extend it. A claim that seems to have ended is taken over only if the tool may be
  repeated. Any other call is then in doubt, and runs again only by a human decision.
  The result of the running attempt counts in any case (its fence is sealed).
- ``checked``, the time when Slack confirmed the givers of a standing approval, has a
  separate seal. An older value ends the approval sooner, never later.
- ``quarantined``, the time of a quarantine, also has a separate seal. A foreign value
  is reported as a forgery. The record's main seal is invalid from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyturn.gateway.errors import CorruptRecord, ForgedRecord
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.encryption import RecordEncryption
from keyturn.gateway.trust.seals import Purpose, SealKeys, seal_keys

SEAL = "h"
"""Field of the head with the seal."""

CHECKED, CHECKED_SEAL = "checked", "checked_seal"
"""Time when Slack confirmed the givers of a standing approval, and its seal."""

QUARANTINED, QUARANTINE_SEAL = "quarantined", "quarantine_seal"
"""Time of the quarantine, and its seal."""

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
    """A record in stored form: its head and its document."""

    head: Fields
    document: bytes

    @property
    def seal(self) -> bytes:
        """Return its seal; empty if there is none."""
        return self.head.get(SEAL, b"")


class RecordSeals:
    """Makes and checks the seals of one store's records.

    Args:
        conn: the store.

    Attributes:
        encryption: encryption of the documents.
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
        """Return the seal of a time that has a separate field."""
        return self._keys.make(field, (approval_id,), at.encode())

    def is_quarantined(self, approval_id: str, head: Fields) -> bool:
        """Return whether a record has a valid mark of quarantine."""
        return self._is_moment(approval_id, head, QUARANTINED, QUARANTINE_SEAL)

    def check(self, approval_id: str, stored: Stored) -> None:
        """Check a record's seal for this approval, with all accepted keys.

        Raises:
            ForgedRecord: the seal is invalid.
            CorruptRecord: the record was quarantined before.
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
    # The lengths of names and values, and the number of fields before them, make the
    # encoding unambiguous.
    return b"%d:%b%d:%b" % (len(name), name, len(value), value)
