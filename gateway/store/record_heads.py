"""Build the head of a record as scripts store it, so that it can be sealed before.

Scripts write what they are given, and nothing else, into the fields that are sealed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol import digest
from twokey.gateway.store import codec
from twokey.gateway.store.connection import number
from twokey.gateway.store.record_encryption import DATA_KEY, MARK, may_be_encrypted
from twokey.gateway.store.record_seals import (
    QUARANTINE_SEAL,
    SEAL,
    RecordSeals,
    Stored,
)

_RAW: Final = {SEAL, QUARANTINE_SEAL, DATA_KEY, "run", "turn", "parts"}
"""Fields that are bytes; they are in hex where fields are texts, see `prelude.lua`."""

_MARK: Final = MARK.decode()


def is_raw(name: str) -> bool:
    """Return whether a field of the head is bytes, which are in hex as a text."""
    return name in _RAW


def opened(
    approval: Approval,
    new: codec.NewRecord,
    uses: Sequence[str],
    run: bytes,
    turn: bytes,
    data_key: bytes = b"",
) -> dict[str, str]:
    """Return the head of a new approval, as fields to write, but for its seal.

    Args:
        approval: with its times.
        new: what else is stored of it.
        uses: what each item uses of windows, as JSON.
        run: hash of its run, and its agent's namespace.
        turn: hash of its turn, where that has a key of its own; else empty.
        data_key: wrapped, where what is pinned is encrypted.
    """
    raw = {"run": run, "turn": turn, "parts": b"".join(map(digest.to_raw, new.shared))}
    raw[DATA_KEY] = data_key
    return {
        **codec.head(approval, approval.items),
        "rev": str(approval.rev),
        "n": str(len(approval.items)),
        "created": str(approval.created_at_ms),
        "format": codec.format_of(is_encrypted=bool(data_key)),
        **{name: one.hex() for name, one in raw.items() if one},
        **{f"{i}:w": rows for i, rows in enumerate(uses) if rows != "[]"},
    }


def following(
    seen: Stored, changes: Mapping[str, str | bool], uses: Mapping[str, str]
) -> Stored:
    """Return the next version as `change.lua` stores it, without its seal.

    Args:
        seen: this version.
        changes: fields to write, or False to delete them.
        uses: what items use of windows from now on, by index.
    """
    found = dict(seen.head)
    found["rev"] = str(number(found["rev"]) + 1).encode()
    written = applied(found, changes)
    for i, rows in uses.items():
        if rows.encode() != written.get(f"{i}:w", b"[]"):
            written[f"{i}:w"] = rows.encode()
    written.pop(SEAL, None)
    return Stored(written, seen.pinned)


def applied(
    head: Mapping[str, bytes], changes: Mapping[str, str | bool]
) -> dict[str, bytes]:
    """Return a head with fields written, or deleted where these say False."""
    found = dict(head)
    for name, value in changes.items():
        if isinstance(value, bool):
            found.pop(name, None)
        elif name in _RAW:
            found[name] = bytes.fromhex(value)
        elif value.startswith(_MARK) and may_be_encrypted(name):
            found[name] = MARK + bytes.fromhex(value.removeprefix(_MARK))
        else:
            found[name] = value.encode()
    return found


def with_format(
    head: Mapping[str, bytes], changes: Mapping[str, str | bool]
) -> dict[str, str | bool]:
    """Return what to write of a record that may be of an older format.

    At each write, not only at the opening: an older version may have opened this
    record, and must not read what this one wrote into it. Until format 14 the hash of
    each action stood in the head; now the seal is over the actions themselves.
    """
    written = codec.format_of(is_encrypted=DATA_KEY in head)
    if head.get("format") == written.encode():
        return dict(changes)
    hashes = dict.fromkeys((one for one in head if one.endswith(":h")), False)
    return {**changes, **hashes, "format": written}


def sealed(seals: RecordSeals, approval_id: str, stored: Stored) -> Stored:
    """Return a record with its seal."""
    seal = seals.of(approval_id, stored)
    return Stored({**stored.head, SEAL: seal}, stored.pinned)
