"""Leaves of the audit tree: entries with hashes in place of erasable values.

A leaf is the canonical JSON (RFC 8785) of an entry. The actor, the reason and all
details of an entry may have to be erased one day, and a tree never forgets. So a leaf
contains only a salted hash of each. The values and their salts are stored outside the
tree, with the entry. With both, a reader can check that they match. After the
erasure the hash reveals nothing, and the tree still verifies.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, cast

from pydantic import JsonValue, ValidationError

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject

VERSION = 1
RAW = "raw"
"""Name of the hidden value of an entry that is no event."""

SEAL = "seal"
"""Name of the hidden seal. It is of no use to people, and never opened."""

_TAG = b"keyturn/v1/audit-field\x00"
_SALT_BYTES = 16
_DATA = "data."
_ERASABLE = ("actor", "reason")
_OUTSIDE = {"at_ms", "seq", "data", *_ERASABLE}


class SealState(StrEnum):
    """Result of the check of an entry's seal.

    ``unsealed`` entries have no seal: another program wrote them. ``forged`` ones have
    a wrong seal, or that of another entry.
    """

    SEALED = "sealed"
    UNSEALED = "unsealed"
    FORGED = "forged"


class Hidden(NamedTuple):
    """The salt, as hex, and the value behind a hash in a leaf."""

    salt: str
    value: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """An entry of the tree, and the values behind its hashes.

    Attributes:
        text: the canonical JSON that is hashed.
        openings: salt and value, by the name of the hidden field.
    """

    text: bytes
    openings: Mapping[str, Hidden]


def leaf_of(
    *, seq: str, at: str, event: str, seal: str, state: SealState, nonce: bytes
) -> Leaf:
    """Return the leaf of an entry; equal entries have equal leaves.

    Args:
        seq: its position in the stream.
        at: time of the write, in Unix milliseconds, as the store has it.
        event: its text as the store has it.
        seal: its seal as the store has it; empty for none.
        state: of its seal.
        nonce: random bytes of this entry, from which the salts are derived.
    """
    shown: JsonObject = {"v": VERSION, "seq": seq, "seal": state.value}
    try:
        found = Event.model_validate_json(event)
    except (ValidationError, ValueError):
        # Time and text of an unknown writer: hide both without interpreting them.
        hidden = {RAW: json.dumps([at, event])}
    else:
        hidden = _hidden_of(found)
        body = found.model_dump(mode="json", exclude=_OUTSIDE, exclude_defaults=True)
        shown = {**cast("JsonObject", body), **shown, "at": at}
    if seal:
        hidden[SEAL] = seal
    openings = {name: Hidden(_salt(nonce, name), one) for name, one in hidden.items()}
    shown["hidden"] = {name: _hash(name, one) for name, one in openings.items()}
    return Leaf(digest.canonical(shown), openings)


def opened(leaf: JsonObject, openings: Mapping[str, Hidden]) -> Event | None:
    """Return the event of a leaf; unopened fields are empty.

    Returns:
        None if the entry is no event.

    Raises:
        NotVerified: ``leaf_wrong``: it is no leaf, or a value is not the hidden one.
    """
    hidden = leaf.get("hidden")
    if leaf.get("v") != VERSION or not isinstance(hidden, dict):
        raise NotVerified("leaf_wrong", "it is no entry of this version")
    for name, one in openings.items():
        if hidden.get(name) != _hash(name, one):
            raise NotVerified("leaf_wrong", f"{name!r} is not what the entry has")
    if RAW in hidden:
        return None
    values = {name: value for name, (_, value) in openings.items()}
    shown = {
        name: value
        for name, value in leaf.items()
        if name not in {"v", "seq", "seal", "at", "hidden"}
    }
    data: dict[str, JsonValue] = {
        name.removeprefix(_DATA): value
        for name, value in values.items()
        if name.startswith(_DATA)
    }
    try:
        return Event.model_validate(
            {
                **shown,
                **{name: values[name] for name in _ERASABLE if name in values},
                "data": data,
                "at_ms": int(str(leaf.get("at"))),
                "seq": leaf.get("seq"),
            }
        )
    except (ValidationError, ValueError) as error:
        raise NotVerified("leaf_wrong", "it is no event") from error


def _hidden_of(event: Event) -> dict[str, str]:
    own = {name: str(getattr(event, name)) for name in _ERASABLE}
    found = {name: value for name, value in own.items() if value}
    return found | {_DATA + name: value for name, value in event.data.items()}


def _salt(nonce: bytes, name: str) -> str:
    # A separate salt for each value: revealing one must not help to guess another.
    return hmac.digest(nonce, name.encode(), "sha256")[:_SALT_BYTES].hex()


def _hash(name: str, one: Hidden) -> str:
    salt, value = one
    # ASCII JSON keeps surrogates, so texts that are no UTF-8 can be hidden too.
    body = json.dumps([salt, name, value]).encode()
    return hashlib.sha256(_TAG + body).hexdigest()
