"""Serialize approvals to Redis fields and back.

What is known at the opening is one packed JSON string (`pinned`) that nothing writes
again. What changes are fields of one hash (`head`): small ones, which scripts compare,
and texts, such as an item's detail (``<i>:d``) once a decision has changed it. Where
all are small, the server keeps the hash in one piece. Arguments stand in the record
once, in the request, until an edit changes them. What the policy says of every such
call stands apart, under its digest (``parts``). All of it is sealed (`record_seals`),
and what does not verify is not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import cast

from pydantic import JsonValue

from twokey.gateway.approvals.record import Acknowledgement, Approval, Item
from twokey.gateway.errors import BadJson, CorruptRecord, NewerRecord
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import TurnRef
from twokey.gateway.store import shared_parts
from twokey.gateway.store.connection import number
from twokey.gateway.store.derived import completed, has_turns_id, shortened
from twokey.gateway.store.integrity import is_whole
from twokey.gateway.store.packing import unpacked
from twokey.gateway.store.record_seals import SEAL, RecordSeals, Stored
from twokey.gateway.store.record_texts import IN_DETAIL, same_action
from twokey.gateway.store.schemas import Parts
from twokey.gateway.store.shared_parts import Shared

FORMAT = 15
"""Number of the format in which records are written; it stands beside them.

It rises with every change after which an older version would misread a record: a new
field, another meaning. An older version leaves what has a higher number alone, and a
newer one reads all lower numbers.
"""

ENCRYPTED = 100
"""How much higher the number of an encrypted record is: a version that cannot decrypt
leaves it alone."""

_LONGEST_FORMAT = 6

_NUMBERS = {
    "t": "changed_at_ms",
    "l": "lapses_at_ms",
    "f": "fence",
    "k": "reconciled_fence",
    "u": "claimed_until_ms",
    "e": "expires_at_ms",
    "y": "latest_at_ms",
}
"""Field of an item in the head to its name in the record."""

_TIMES = {
    "expires": "expires_at_ms",
    "reminded": "reminded_at_ms",
    "escalated": "escalated_at_ms",
    "checked": "checked_at_ms",
}
"""The same of the approval itself."""

_numbers_of: Callable[[Item], Sequence[int]] = attrgetter(*_NUMBERS.values())
_times_of: Callable[[Approval], Sequence[int]] = attrgetter(*_TIMES.values())

_IN_HEAD = {"state", "owner", "result", "late_result", *_NUMBERS.values()}
_SHOWN_ONLY = {"past", "is_frozen"}
_APPROVAL_IN_HEAD = {"version", "rev", "created_at_ms", "acknowledged", "remarks"} | {
    "inquiries",
    "uses",
    *_TIMES.values(),
}
_TEXTS = {"d", "r", "late", "w", "acknowledged", "remarks", "inquiries", "uses"}
_TEXTS.update(("format", "run", "turn", "of", "parts", "schemas"))
_STATES = frozenset(ItemState)
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class NewRecord:
    """A new approval as it is stored, but what `head` has of it.

    An item's detail holds until the hash has another one.

    Attributes:
        pinned: JSON of what no other record has.
        shared: the texts of what others share, by their digests.
        of_items: under which digest each item shares something.
    """

    pinned: str
    shared: Mapping[str, str]
    of_items: Sequence[str]


def new(approval: Approval) -> NewRecord:
    """Return a new approval as it is stored."""
    record = approval.model_dump(
        mode="json", exclude={*_APPROVAL_IN_HEAD, "items"}, exclude_defaults=True
    )
    rows: list[JsonObject] = []
    for item in approval.items:
        row = item.model_dump(
            mode="json",
            exclude=_IN_HEAD | _SHOWN_ONLY | same_action(item),
            exclude_defaults=True,
        )
        rows.append(shortened(record, item.index, row))
    shared = shared_parts.split(record, rows)
    named = [*shared]
    of_items = [named[cast("int", row[shared_parts.PLACE])] for row in rows]
    if has_turns_id(record):
        del record["id"]
    record["items"] = [*rows]
    return NewRecord(pinned(record), shared, of_items)


def pinned(record: JsonObject) -> str:
    """Return the JSON of what never changes of an approval."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def head(approval: Approval, items: Sequence[Item]) -> dict[str, str]:
    """Return the small fields of an approval, and of these items, that may change.

    ``rev`` is the store's own. What is zero or empty has no field.
    """
    times = zip(_TIMES, _times_of(approval), strict=True)
    found = {name: str(value) for name, value in times if value}
    # The first one, which most keep, has no field.
    if approval.version > 1:
        found["version"] = str(approval.version)
    for item in items:
        index = item.index
        for field, value in zip(_NUMBERS, _numbers_of(item), strict=True):
            if value:
                found[f"{index}:{field}"] = str(value)
        found[f"{index}:s"] = str(item.state)
        if item.owner:
            found[f"{index}:o"] = item.owner
    return found


def texts_in(head: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the stored fields that are not those of `head`."""
    return {name: one for name, one in head.items() if name.split(":")[-1] in _TEXTS}


def changed(before: dict[str, str], after: dict[str, str]) -> dict[str, str | bool]:
    """Return the fields to write: what they become, or False to delete them."""
    # False and not None: Lua takes the null of JSON for true.
    found: dict[str, str | bool] = dict.fromkeys(before.keys() - after.keys(), False)
    found |= {key: value for key, value in after.items() if before.get(key) != value}
    return found


def states(head: Mapping[str, bytes]) -> dict[int, ItemState]:
    """Return the states that a corrupt record still tells, by index."""
    found: dict[int, ItemState] = {}
    for field, value in head.items():
        index, _, kind = field.partition(":")
        state = value.decode("utf-8", "replace")
        # Read without trust, because the record is corrupt: what is no state is left
        # out.
        if kind == "s" and index.isdecimal() and state in _STATES:
            found[int(index)] = ItemState(state)
    return found


def digests(head: Mapping[str, bytes]) -> list[str]:
    """Return the digests of the parts that a stored approval shares, in order."""
    raw = head.get("parts") or head.get("schemas", b"")
    starts = range(0, len(raw), _DIGEST_BYTES)
    return [digest.from_raw(raw[at : at + _DIGEST_BYTES]) for at in starts]


def approval(
    approval_id: str,
    stored: Stored,
    parts: Parts,
    seals: RecordSeals,
) -> Approval:
    """Put a stored approval together again, with those of these parts that it shares.

    It is the only door: what does not verify is not parsed.

    Raises:
        NewerRecord: when a newer version wrote it.
        ForgedRecord: when it is not as it was sealed.
        CorruptRecord: when it cannot be parsed, or its parts do not belong
            together: what a card shows is what was hashed is what runs.
    """
    head = stored.head
    check_format(approval_id, head)
    seals.check(approval_id, stored)
    try:
        plain = _plain(approval_id, stored, seals)
        found = _together(approval_id, plain, _in_order(parts, head))
        # Until format 14 these stood in the place of a seal.
        read = head.get if SEAL in head else head.__getitem__
        hashes = [read(f"{item.index}:h") for item in found.items]
        is_ours = (
            found.id == approval_id
            and number(head["n"]) == len(found.items)
            and is_whole(found, hashes)
        )
    # pydantic's ValidationError is a ValueError. Its text would quote the record, so
    # only the id goes on. A dictionary that is not known comes with a format that is
    # not known, either: here it is damage.
    except (KeyError, TypeError, ValueError, BadJson, NewerRecord) as error:
        raise CorruptRecord(approval_id) from error
    if not is_ours:
        raise CorruptRecord(approval_id)
    return found


def as_opened(
    approval_id: str,
    stored: Stored,
    parts: Parts,
    seals: RecordSeals,
) -> Approval:
    """Return a stored approval with its items as the policy decided on them first.

    Raises:
        NewerRecord: when a newer version wrote it.
        CorruptRecord: as `approval`, by everything that is stored of it.
    """
    approval(approval_id, stored, parts, seals)
    head = stored.head
    kept = {name: one for name, one in head.items() if not name.endswith(":d")}
    plain = _plain(approval_id, replace(stored, head=kept), seals)
    return _together(approval_id, plain, _in_order(parts, head))


def whose(pinned: bytes) -> tuple[str, TurnRef] | None:
    """Return tenant and turn of a corrupt record; None: unknown."""
    try:
        record = _object(pinned)
        names = {name: record.get(name, "") for name in ("ns", "message_id")}
        names |= {name: record[name] for name in ("agent", "thread")}
        ref = TurnRef.model_validate({**names, "nested_in": record.get("nested_in")})
        return str(record["tenant"]), ref
    except (KeyError, TypeError, ValueError, NewerRecord):
        return None


def format_of(*, is_encrypted: bool) -> str:
    """Return the number of the format that a record is written in."""
    return str(FORMAT + ENCRYPTED * is_encrypted)


def check_format(record: str, found: Mapping[str, bytes]) -> None:
    """Check that this version knows the format of a record.

    Raises:
        NewerRecord: when a newer version wrote it.
    """
    written = found.get("format", b"")
    # A record without a number is of a format before numbers. What is longer than any
    # number of ours has no seal that fits, which is found behind this.
    is_number = written.isdigit() and len(written) <= _LONGEST_FORMAT
    if is_number and int(written) % ENCRYPTED > FORMAT:
        raise NewerRecord(record, format=int(written), known=FORMAT)


def _plain(approval_id: str, stored: Stored, seals: RecordSeals) -> Stored:
    return Stored(*seals.encryption.opened(approval_id, stored.head, stored.pinned))


def _in_order(parts: Parts, head: Mapping[str, bytes]) -> Shared:
    # One that is missing raises KeyError: without it nobody knows whom a call needs.
    return {place: parts[one] for place, one in enumerate(digests(head))}


def _together(approval_id: str, stored: Stored, shared: Shared) -> Approval:
    head = stored.head
    record = {**shared_parts.of_record(shared), **_object(stored.pinned)}
    if "id" not in record:
        record["id"] = approval_id
        # What stands under another id than its turn has was moved there.
        if not has_turns_id(record):
            raise ValueError("not of this turn")
    pinned_items = cast("list[JsonObject]", record["items"])
    acknowledged = head.get("acknowledged")
    items = [
        _item(index, completed(record, index, shared_parts.joined(row, shared)), head)
        for index, row in enumerate(pinned_items)
    ]
    return Approval.model_validate(
        {
            **record,
            "rev": number(head["rev"]),
            "version": number(head.get("version", 1)),
            "created_at_ms": number(head["created"]),
            # Fields of zero are not written, see `head`; a missing one reads as 0.
            **{name: number(head.get(field)) for field, name in _TIMES.items()},
            # Of the four only this one always has a field: without it the record is
            # corrupt, and 0 would read as a deadline long past.
            "expires_at_ms": number(head["expires"]),
            "acknowledged": Acknowledgement.model_validate_json(acknowledged)
            if acknowledged
            else None,
            "remarks": json.loads(head.get("remarks", b"[]")),
            "inquiries": json.loads(head.get("inquiries", b"[]")),
            "uses": json.loads(head.get("uses", b"[]")),
            "items": items,
        }
    )


def _item(
    index: int,
    row: JsonObject,
    head: Mapping[str, bytes],
) -> Item:
    result, late = head.get(f"{index}:r"), head.get(f"{index}:late")
    if (changed := head.get(f"{index}:d")) is not None:
        # All of it holds, also that a field has its default again.
        kept = {name: one for name, one in row.items() if name not in IN_DETAIL}
        row = {**kept, **_object(changed)}
    return Item.model_validate(
        {
            # What nobody edited runs as it was requested.
            "action": row["requested"],
            **row,
            "state": ItemState(head[f"{index}:s"].decode()),
            "owner": head.get(f"{index}:o", b"").decode(),
            **{
                name: number(head.get(f"{index}:{field}"))
                for field, name in _NUMBERS.items()
            },
            "result": Result.model_validate_json(result) if result else None,
            "late_result": Result.model_validate_json(late) if late else None,
        }
    )


def _object(text: bytes) -> dict[str, JsonValue]:
    found = cast("object", json.loads(unpacked(text)))
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return cast("dict[str, JsonValue]", found)
