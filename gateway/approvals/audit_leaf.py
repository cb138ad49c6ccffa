"""Leaves of the audit tree: an entry in which hashes stand for what may be erased.

A leaf is the canonical JSON (RFC 8785) of an entry. Who acted, their words and all
details of an entry may have to be erased one day, and a tree never forgets: so a leaf
holds a salted hash of each of them. The values and their salts are beside the log, in
the entry itself. Whoever has both sees that they belong together; once they are erased,
the hash tells nothing, and the tree still verifies.
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
"""Name of the hidden seal. It tells people nothing, and is opened to nobody."""

_TAG = b"keyturn/v1/audit-field\x00"
_SALT_BYTES = 16
_DATA = "data."
_ERASABLE = ("actor", "reason")
_OUTSIDE = {"at_ms", "seq", "data", *_ERASABLE}


class SealState(StrEnum):
    """Whether one of our processes wrote an entry.

    ``unsealed`` entries have no seal: another program wrote them.
    ``forged`` ones have a wrong seal, or that of another entry.
    """

    SEALED = "sealed"
    UNSEALED = "unsealed"
    FORGED = "forged"


class Hidden(NamedTuple):
    """The salt, as hex, and the value for which a hash stands in a leaf."""

    salt: str
    value: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """An entry of the tree, and what its hashes stand for.

    Attributes:
        text: the canonical JSON that is hashed.
        openings: salt and value, by the name of what is hidden.
    """

    text: bytes
    openings: Mapping[str, Hidden]


def leaf_of(
    *,
    seq: str,
    at: str,
    event: str,
    seal: str,
    rev: int,
    state: SealState,
    nonce: bytes,
) -> Leaf:
    """Return the leaf of an entry; the same for the same entry.

    Args:
        seq: its place in the stream.
        at: when it was written, in Unix milliseconds, as the store has it.
        event: its text as the store has it.
        seal: its seal as the store has it; empty for none.
        rev: of the approval that it is about, from its seal; 0 for none.
        state: of its seal.
        nonce: random bytes of this entry, from which the salts are made.
    """
    shown: JsonObject = {"v": VERSION, "seq": seq, "seal": state.value}
    try:
        found = Event.model_validate_json(event)
    except (ValidationError, ValueError):
        # Time and text of somebody else: no part of it is taken for anything.
        hidden = {RAW: json.dumps([at, event])}
    else:
        hidden = _hidden_of(found)
        body = found.model_dump(mode="json", exclude=_OUTSIDE, exclude_defaults=True)
        shown = {**cast("JsonObject", body), **shown, "at": at, "rev": rev}
    if seal:
        hidden[SEAL] = seal
    openings = {name: Hidden(_salt(nonce, name), one) for name, one in hidden.items()}
    shown["hidden"] = {name: _hash(name, one) for name, one in openings.items()}
    return Leaf(digest.canonical(shown), openings)


def opened(leaf: JsonObject, openings: Mapping[str, Hidden]) -> Event | None:
    """Return the event of a leaf; what is not opened is empty in it.

    Returns:
        None where the entry is no event.

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
        if name not in {"v", "seq", "seal", "at", "rev", "hidden"}
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
    # One for each value: showing one must not help to guess another.
    return hmac.digest(nonce, name.encode(), "sha256")[:_SALT_BYTES].hex()


def _hash(name: str, one: Hidden) -> str:
    salt, value = one
    # With surrogates: what is no UTF-8 is hidden as well.
    body = json.dumps([salt, name, value]).encode()
    return hashlib.sha256(_TAG + body).hexdigest()
