"""Seals of events: did one of our processes write this one, and of which rev?

A seal stands beside an event in the outbox and in the audit log, behind a newline where
a script is told of the event: ``12.<nonce>.<code>``. The code (HMAC-SHA256, cut to 16
bytes) covers the tenant, the rev of the approval that the event is about, the nonce and
the event's text. The nonce makes each entry another one, also where the events are
equal, and the salts of its leaf in the audit tree are made from it.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, cast

from pydantic_core import to_json

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.encryption import (
    decrypted_text,
    encrypted_text,
    opened_words,
    sealed_words,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.trust.seals import Purpose, seal_keys

_LABEL = "audit-entry"
_EVENT, _REJECTION = "event", "rejection"
_NONCE_BYTES = 12
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_SEAL = re.compile(r"(0|[1-9][0-9]{0,15})\.([\w-]{16})\.([\w-]{22})", re.ASCII)


class EntrySeal(NamedTuple):
    """What the seal of an entry says.

    Attributes:
        state: whether it is one of ours.
        rev: of the approval that the entry is about; 0 for none, or unknown.
        nonce: random bytes of this entry; empty where there is no seal.
    """

    state: SealState
    rev: int
    nonce: bytes


def sealed_text(conn: Connection, keys: Keys, body: str, *, rev: int = 0) -> str:
    """Return the text of an event and its seal, as scripts take it.

    Args:
        conn: to the store, with the secrets that seal.
        keys: of the tenant whose log it stands in.
        body: the event's text.
        rev: of the approval that it is about, as it is written with the event.
    """
    # The seal is over what the event says, whether it is encrypted or not.
    return (
        f"{encrypted_event(conn, keys, body)}\n{entry_seal(conn, keys, body, rev=rev)}"
    )


def entry_seal(conn: Connection, keys: Keys, body: str, *, rev: int) -> str:
    """Return the seal of an event, with a nonce of its own; see `sealed_text`."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    known = seal_keys(conn.secrets, Purpose.AUDIT_ENTRIES)
    code = known.make(_LABEL, (keys.tenant, str(rev), nonce), body.encode())
    return f"{rev}.{_encoded(nonce)}.{_encoded(code)}"


def encrypted_event(conn: Connection, keys: Keys, body: str) -> str:
    """Return the text of an event as a tenant's streams hold it."""
    return encrypted_text(conn, (_EVENT, keys.tenant), body)


def sealed_event(
    conn: Connection, keys: Keys, values: Mapping[str, bytes]
) -> bytes | None:
    """Return the text of an entry of the outbox; None for what is not ours.

    Raises:
        KeyError: there is no text.
        ValueError: it was encrypted, and not as one of this tenant.
    """
    body = decrypted_event(conn, keys, values["e"])
    # With surrogates: what is no UTF-8 has no seal of ours, and must not raise.
    event, seal = (
        one.decode("utf-8", "surrogateescape") for one in (body, values.get("s", b""))
    )
    is_ours = read_seal(conn, keys, event, seal).state is SealState.SEALED
    return body if is_ours else None


def decrypted_event(conn: Connection, keys: Keys, stored: bytes) -> bytes:
    """Return the text of an event of a tenant's streams.

    Raises:
        ValueError: it was encrypted, and not as one of this tenant.
    """
    return decrypted_text(conn, (_EVENT, keys.tenant), stored)


def event_texts(
    conn: Connection,
    keys: Keys,
    events: Iterable[Event],
    *,
    of: Collection[str] = (),
    rev: int = 0,
) -> str:
    """Return events as scripts read them: an array of what `sealed_texts` returns."""
    return to_json(sealed_texts(conn, keys, events, of=of, rev=rev)).decode()


def sealed_texts(
    conn: Connection,
    keys: Keys,
    events: Iterable[Event],
    *,
    of: Collection[str] = (),
    rev: int = 0,
) -> list[str]:
    """Return the texts of events with their seals.

    Args:
        conn: to the store.
        keys: of the tenant whose log they stand in.
        events: to write.
        of: ids of the approvals that are written with them.
        rev: of these approvals, as they are written.
    """
    told = texts_of(events, of=of, rev=rev)
    return [sealed_text(conn, keys, body, rev=about) for body, about in told]


def texts_of(
    events: Iterable[Event], *, of: Collection[str] = (), rev: int = 0
) -> list[tuple[str, int]]:
    """Return the texts of events, and of which ``rev`` of its approval each one is."""
    # Without what is as it is by default. An event of a change may be about another
    # approval, such as the standing one that it uses.
    return [
        (one.model_dump_json(exclude_defaults=True), rev if one.approval in of else 0)
        for one in events
    ]


def with_sealed_event(
    conn: Connection, keys: Keys, rejected: str, rejection: Mapping[str, object]
) -> dict[str, object]:
    """Return what a rejection brings with it, with the seal of its event.

    What people said of each call is sealed, and encrypted, for where it is kept.
    """
    found = dict(rejection)
    if isinstance(calls := found.get("calls"), list):
        rows = cast("list[list[str]]", calls)
        found["calls"] = [
            [one, sealed_words(conn, (_REJECTION, rejected, one), body)]
            for one, body in rows
        ]
    if isinstance(paused := found.get("event"), str):
        found["event"] = sealed_text(conn, keys, paused)
    return found


def opened_rejection(
    conn: Connection, rejected: str, call: str, stored: bytes
) -> bytes | None:
    """Return what is kept of a call that was rejected in its thread.

    None for what was not sealed for that thread and call.
    """
    try:
        body, is_sealed = opened_words(conn, (_REJECTION, rejected, call), stored)
    except ValueError:
        return None
    return body if is_sealed else None


def read_seal(conn: Connection, keys: Keys, event: str, seal: str) -> EntrySeal:
    """Return what the seal of an entry says, after checking it."""
    if not seal:
        return EntrySeal(SealState.UNSEALED, 0, b"")
    found = _SEAL.fullmatch(seal)
    if found is None:
        return EntrySeal(SealState.FORGED, 0, b"")
    rev, nonce, code = int(found[1]), _decoded(found[2]), _decoded(found[3])
    known = seal_keys(conn.secrets, Purpose.AUDIT_ENTRIES)
    # With surrogates: what is no UTF-8 has no seal of ours, and must not raise.
    body = event.encode("utf-8", "surrogateescape")
    if not known.is_valid(code, _LABEL, (keys.tenant, str(rev), nonce), body):
        return EntrySeal(SealState.FORGED, 0, nonce)
    return EntrySeal(SealState.SEALED, rev, nonce)


def nonce_of(seal: str) -> tuple[int, bytes]:
    """Return the rev and the nonce of a seal that is not checked."""
    found = _SEAL.fullmatch(seal)
    return (int(found[1]), _decoded(found[2])) if found else (0, b"")


def parts_of(sealed: str) -> tuple[str, str]:
    """Return the text and the seal of what `sealed_text` made."""
    body, _, seal = sealed.partition("\n")
    return body, seal


def _encoded(raw: bytes) -> str:
    # What `base64` does in Python, a call for each step: a click makes two of these.
    text = binascii.b2a_base64(raw, newline=False)
    return text.translate(_URL_SAFE).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return b""
