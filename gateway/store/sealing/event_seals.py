"""Seals of events: proof that Keyturn wrote an entry.

In the outbox and the audit log the seal is a separate field; in arguments of scripts it
follows the event after a newline. Its format is ``<nonce>.<code>``. The code
(HMAC-SHA256, cut to 16 bytes) covers the tenant, the nonce and the event's text. The
nonce makes equal events distinct, and the salts of the entry's leaf in the audit tree
are derived from it.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Iterable

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.encryption import decrypted_text, encrypted_text
from keyturn.gateway.trust.seals import Purpose, seal_keys

_LABEL = "audit-entry"
_EVENT = "event"
_NONCE_BYTES = 12
_SEAL = re.compile(r"([\w-]{16})\.([\w-]{22})", re.ASCII)


def sealed_text(conn: Connection, keys: Keys, body: str) -> str:
    """Return an event's text and its seal, as scripts expect them.

    Args:
        conn: connection to the store, with the sealing keys.
        keys: keys of the tenant whose log gets the event.
        body: the event's text.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    known = seal_keys(conn.secrets, Purpose.AUDIT_ENTRIES)
    # The seal covers the plain text, whether or not it is encrypted.
    code = known.make(_LABEL, (keys.tenant, nonce), body.encode())
    stored = encrypted_text(conn, (_EVENT, keys.tenant), body)
    return f"{stored}\n{_encoded(nonce)}.{_encoded(code)}"


def decrypted_event(conn: Connection, keys: Keys, stored: bytes) -> bytes:
    """Return the plain text of an event in a tenant's streams.

    Raises:
        ValueError: it cannot be decrypted for this tenant.
    """
    return decrypted_text(conn, (_EVENT, keys.tenant), stored)


def sealed_texts(conn: Connection, keys: Keys, events: Iterable[Event]) -> list[str]:
    """Return the texts of events with their seals; default values are omitted."""
    return [
        sealed_text(conn, keys, one.model_dump_json(exclude_defaults=True))
        for one in events
    ]


def read_seal(conn: Connection, keys: Keys, event: str, seal: str) -> SealState:
    """Check the seal of an entry."""
    if not seal:
        return SealState.UNSEALED
    found = _SEAL.fullmatch(seal)
    if found is None:
        return SealState.FORGED
    known = seal_keys(conn.secrets, Purpose.AUDIT_ENTRIES)
    # Surrogates: bytes other than UTF-8 fail the check and must not raise.
    body, place = (
        event.encode("utf-8", "surrogateescape"),
        (keys.tenant, nonce_of(seal)),
    )
    is_valid = known.is_valid(_decoded(found[2]), _LABEL, place, body)
    return SealState.SEALED if is_valid else SealState.FORGED


def nonce_of(seal: str) -> bytes:
    """Return the nonce of an unchecked seal; empty without one."""
    found = _SEAL.fullmatch(seal)
    return _decoded(found[1]) if found else b""


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return b""
