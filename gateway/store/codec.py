"""Store an approval as one JSON document, plus a hash of fields that scripts compare.

The document is a compressed string, encrypted if the store encrypts, and replaced by
each change. The hash, called the head, contains states, times and revisions, which the
document does not repeat. One seal covers both (`record_seals`). Records with an invalid
seal are not parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import JsonValue

from keyturn.gateway.approvals.record import Approval, Item, item_id
from keyturn.gateway.errors import BadJson, CorruptRecord
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.business_state import is_same_but_state
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject, parse_object
from keyturn.gateway.protocol.wire import TurnRef
from keyturn.gateway.store.connection import number
from keyturn.gateway.store.encryption import DATA_KEY, packed, unpacked
from keyturn.gateway.store.record_seals import (
    QUARANTINE_SEAL,
    SEAL,
    RecordSeals,
    Stored,
)

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
_ELSEWHERE = {"id", "rev", *_TIMES.values()}
_BYTES = {SEAL, QUARANTINE_SEAL, DATA_KEY, "run", "turn"}
"""Binary fields; scripts get them in hex, see `records.lua`."""

_OF_CONTEXT = ("tenant", "agent", "thread", "ns", "message_id")
_STATES = frozenset(ItemState)


def document(approval: Approval) -> bytes:
    """Return the document of an approval, not yet encrypted."""
    excluded: dict[str, Any] = dict.fromkeys(_ELSEWHERE, True)
    excluded["items"] = {item.index: _not_stored(item) for item in approval.items}
    return packed(approval.model_dump_json(exclude=excluded, exclude_defaults=True))


def _not_stored(item: Item) -> set[str]:
    # The action of an unedited item equals its request.
    same = {"action"} if item.action == item.requested else set[str]()
    return _ITEM_ELSEWHERE | _SHOWN_ONLY | same


def head(approval: Approval) -> dict[str, str]:
    """Return the fields of an approval that scripts compare; zeros are omitted.

    The store itself maintains ``rev``.
    """
    times = ((name, getattr(approval, field)) for name, field in _TIMES.items())
    found = {name: str(value) for name, value in times if value}
    for item in approval.items:
        found[f"{item.index}:s"] = str(item.state)
        for name, field in _NUMBERS.items():
            if value := getattr(item, field):
                found[f"{item.index}:{name}"] = str(value)
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> dict[str, str | bool]:
    """Return the changed fields with new values; False for deleted fields."""
    # Not None: Lua treats JSON null as true.
    found: dict[str, str | bool] = dict.fromkeys(before.keys() - after.keys(), False)
    found |= {key: value for key, value in after.items() if before.get(key) != value}
    return found


def applied(
    head: Mapping[str, bytes], changes: Mapping[str, str | bool]
) -> dict[str, bytes]:
    """Return a head after changes; False deletes a field."""
    found = dict(head)
    for name, value in changes.items():
        if isinstance(value, bool):
            found.pop(name, None)
        else:
            is_hex = name in _BYTES
            found[name] = bytes.fromhex(value) if is_hex else value.encode()
    return found


def states(head: Mapping[str, bytes]) -> dict[int, ItemState]:
    """Return the legible item states of a corrupt record, by index."""
    found: dict[int, ItemState] = {}
    for field, value in head.items():
        index, _, kind = field.partition(":")
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
        plain = seals.encryption.opened(approval_id, stored.head, stored.document)
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
    action = parse_object(str(row["requested"]))
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
    action = parse_object(item.action)
    return (action["tool"], action["ctx"]) == (item.tool, item.ctx.as_dict())


def _is_edited(item: Item) -> bool:
    edit = item.edit
    return (
        edit is not None
        and edit.original_hash == digest.action_hash(item.requested)
        and edit.edited_hash == item.action_hash
    )
