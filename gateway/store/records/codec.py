"""Store an approval as one sealed JSON document, plus a hash of fields for scripts.

The document is a compressed string, encrypted if the store encrypts, and replaced by
each change. The hash, called the head, contains states, times and revisions, which the
document does not repeat. Scripts compare the fields of the head.

One field of the head is a seal over everything stored: every field of the head by name,
and the document, for this approval's id. Otherwise an attacker with write access to the
server could let a call run, or change the texts for people and agents. Records with an
invalid seal are not parsed. Each change computes the seal of the next version before
writing it, so scripts need no key.

Excluded from the seal are fields that scripts change between two versions:

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

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from keyturn.gateway.approvals.record import (
    Approval,
    Concerned,
    Item,
    concerned,
    item_id,
)
from keyturn.gateway.errors import BadJson, CorruptRecord, ForgedRecord
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import is_same_but_state
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject, parse_object
from keyturn.gateway.protocol.wire import TurnRef
from keyturn.gateway.store.connection.connection import Connection, Reply, number
from keyturn.gateway.store.sealing.encryption import (
    DATA_KEY,
    decrypted_document,
    packed,
    unpacked,
)
from keyturn.gateway.trust.seals import Purpose, SealKeys, seal_keys

SEAL = "h"
"""Field of the head with the seal."""

CHECKED, CHECKED_SEAL = "checked", "checked_seal"
"""Time when Slack confirmed the givers of a standing approval, and its seal."""

QUARANTINED, QUARANTINE_SEAL = "quarantined", "quarantine_seal"
"""Time of the quarantine, and its seal."""

CONCERNED = "q"
"""Users and groups of the pending calls: a JSON array of two arrays."""

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
    """A record in stored form: its head and its document.

    Attributes:
        head: the fields that scripts compare.
        document: the rest, packed and perhaps encrypted.
    """

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
        conn: the store.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    @property
    def _keys(self) -> SealKeys:
        return seal_keys(self.conn.secrets, Purpose.RECORDS)

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
        is_checked = self._is_moment(approval_id, head, CHECKED, CHECKED_SEAL)
        if CHECKED in head and not is_checked:
            raise ForgedRecord(approval_id, WRONG_CHECK)

    def _is_moment(self, approval_id: str, head: Fields, name: str, seal: str) -> bool:
        if name not in head:
            return False
        made = head.get(seal, b"")
        return self._keys.is_valid(made, name, (approval_id,), head[name])


def _content(stored: Stored) -> bytes:
    # The lengths of names and values, and the number of fields before them, make the
    # encoding unambiguous.
    rows = [
        b"%d:%b%d:%b" % (len(coded := name.encode()), coded, len(value), value)
        for name, value in sorted(stored.head.items())
        if name not in _UNSEALED and name[-2:] != _CLAIM_END
    ]
    return b"".join([b"%d;" % len(rows), *rows, stored.document])


_NUMBERS = {
    "t": "changed_at_ms",
    "l": "lapses_at_ms",
    "f": "fence",
    "u": "claimed_until_ms",
    "e": "expires_at_ms",
}
"""Names of an item's number fields: in the head, and in the record."""

_TIMES = {
    "created": "created_at_ms",
    "expires": "expires_at_ms",
    "checked": "checked_at_ms",
}
"""The same for the approval's times."""

# Derived: an item's id from the approval's id, its context and tool from its action.
_ITEM_ELSEWHERE = {"state", "id", "index", "ctx", "tool", *_NUMBERS.values()}
_SHOWN_ONLY = {"past", "is_frozen"}
_ELSEWHERE = {"id", "rev", "items", *_TIMES.values()}
_BYTES = {SEAL, QUARANTINE_SEAL, DATA_KEY, "run", "turn"}
"""Binary fields; scripts get them in hex, see `records.lua`."""

_OF_CONTEXT = ("tenant", "agent", "thread", "ns", "message_id")
_STATES = frozenset(ItemState)


def document(approval: Approval) -> bytes:
    """Return the document of an approval, not yet encrypted."""
    rest = approval.model_dump_json(exclude=_ELSEWHERE, exclude_defaults=True)
    rows = ",".join(map(_row, approval.items))
    return packed(f'{rest[:-1]},"items":[{rows}]}}')


def _row(item: Item) -> str:
    # The action of an unedited item equals its request.
    same = {"action"} if item.action == item.requested else set[str]()
    excluded = _ITEM_ELSEWHERE | _SHOWN_ONLY | same
    return item.model_dump_json(exclude=excluded, exclude_defaults=True)


def head(approval: Approval) -> dict[str, bytes]:
    """Return the fields of an approval that scripts compare; zeros are omitted.

    `CONCERNED` contains the people whom the pending calls concern, so that a queue can
    be listed without the documents.
    """
    times = ((name, getattr(approval, field)) for name, field in _TIMES.items())
    found = {name: str(value) for name, value in times if value}
    found["rev"] = str(approval.rev)
    if people := concerned(approval):
        names = [sorted(people.users), sorted(people.groups)]
        found[CONCERNED] = json.dumps(names, separators=(",", ":"))
    for item in approval.items:
        found[f"{item.index}:s"] = str(item.state)
        for name, field in _NUMBERS.items():
            if value := getattr(item, field):
                found[f"{item.index}:{name}"] = str(value)
    return {name: value.encode() for name, value in found.items()}


def changed(before: Fields, after: Fields) -> dict[str, str | bool]:
    """Return changed fields as scripts take them; False deletes a field."""
    # Not None: Lua treats JSON null as true.
    found: dict[str, str | bool] = dict.fromkeys(before.keys() - after.keys(), False)
    for name, value in after.items():
        if before.get(name) != value:
            found[name] = value.hex() if name in _BYTES else value.decode()
    return found


def concerned_in(stored: Reply) -> Concerned | None:
    """Return the people in a stored field; None if it is absent or malformed."""
    if not isinstance(stored, bytes):
        return None
    try:
        users, groups = json.loads(stored)
        return Concerned(set(users), set(groups))
    except (ValueError, TypeError):
        return None


def states(head: Mapping[str, bytes]) -> dict[int, ItemState]:
    """Return the legible item states of a corrupt record, by index."""
    found: dict[int, ItemState] = {}
    for name, value in head.items():
        index, _, kind = name.partition(":")
        state = value.decode("utf-8", "replace")
        # The record is corrupt, so trust nothing: skip unknown states.
        if kind == "s" and index.isdecimal() and state in _STATES:
            found[int(index)] = ItemState(state)
    return found


def approval(approval_id: str, stored: Stored, seals: RecordSeals) -> Approval:
    """Verify and parse a stored approval.

    Raises:
        ForgedRecord: when its seal is invalid.
        CorruptRecord: when it cannot be parsed, or when the shown, hashed and executed
            actions are inconsistent.
    """
    seals.check(approval_id, stored)
    try:
        plain = decrypted_document(
            seals.conn, approval_id, stored.head, stored.document
        )
        found = _read(approval_id, stored.head, plain)
        is_ours = number(stored.head["n"]) == len(found.items) and _is_whole(found)
    # pydantic's ValidationError is a ValueError. Its text quotes the record, so pass on
    # only the id.
    except (KeyError, TypeError, ValueError, BadJson) as error:
        raise CorruptRecord(approval_id) from error
    if not is_ours:
        raise CorruptRecord(approval_id)
    return found


def whose(document: bytes) -> tuple[str, TurnRef] | None:
    """Return tenant and turn of a corrupt record, or None if illegible."""
    try:
        record = _object(document)
        names = {name: record.get(name, "") for name in ("ns", "message_id")}
        names |= {name: record[name] for name in ("agent", "thread")}
        ref = TurnRef.model_validate({**names, "nested_in": record.get("nested_in")})
        return str(record["tenant"]), ref
    except (KeyError, TypeError, ValueError):
        return None


def _read(approval_id: str, head: Mapping[str, bytes], document: bytes) -> Approval:
    record = _object(document)
    rows = cast("list[JsonObject]", record["items"])
    return Approval.model_validate(
        {
            **record,
            "id": approval_id,
            "rev": number(head["rev"]),
            # These two are never zero: 0 would mean a deadline long past.
            "created_at_ms": number(head["created"]),
            "expires_at_ms": number(head["expires"]),
            "checked_at_ms": number(head.get("checked")),
            "items": [_item(approval_id, *row, head) for row in enumerate(rows)],
        }
    )


def _item(
    approval_id: str, index: int, row: JsonObject, head: Mapping[str, bytes]
) -> dict[str, object]:
    action = digest.action_members(str(row["requested"]))
    return {
        "action": row["requested"],
        **row,
        "id": item_id(approval_id, index),
        "index": index,
        "ctx": action["ctx"],
        "tool": action["tool"],
        "state": head[f"{index}:s"].decode(),
        **{
            field: number(head.get(f"{index}:{name}"))
            for name, field in _NUMBERS.items()
        },
    }


def _object(text: bytes) -> dict[str, JsonValue]:
    found = cast("object", json.loads(unpacked(text)))
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return cast("dict[str, JsonValue]", found)


def _is_whole(found: Approval) -> bool:
    """Return whether all items belong to the approval and match their hashes."""
    # The seal prevents others from moving an approval to another call. This check finds
    # inconsistent records that Keyturn itself wrote.
    return all(
        all(getattr(item.ctx, name) == getattr(found, name) for name in _OF_CONTEXT)
        and _is_same_call(item)
        and (_is_edited(item) or is_same_but_state(item.requested, item.action))
        # Reading `bounds` raises if they are malformed.
        and (item.bounds is not None) is item.is_standing
        for item in found.items
    )


def _is_same_call(item: Item) -> bool:
    """Return whether an edit kept the request's tool and context."""
    if item.action == item.requested:
        return True
    action = parse_object(item.action)
    return (action["tool"], action["ctx"]) == (item.tool, item.ctx.as_dict())


def _is_edited(item: Item) -> bool:
    edit = item.edit
    return (
        edit is not None
        and edit.original_hash == digest.action_hash(item.requested)
        and edit.edited_hash == item.action_hash
    )
