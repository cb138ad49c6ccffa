"""Encrypt texts of the store that belong to no record: events, facts, jobs, verdicts.

They are bound to their place, and encrypted with a key that is derived from the secret
(AES-256-GCM). Whoever reads one reads plain texts as well: a store may hold both.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from twokey.gateway.errors import NotVerified
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.packing import packed, unpacked
from twokey.gateway.store.record_encryption import MARK
from twokey.gateway.trust.encryption import decrypt_here, encrypt_here, text_keys

_TEXT_MARK: Final = MARK.decode()


def encrypted(conn: Connection, place: Sequence[str], body: bytes) -> bytes:
    """Return a text as it is stored; as it is where the store does not encrypt."""
    if not (conn.encrypts and body):
        return body
    return MARK + encrypt_here(text_keys(conn.secrets), body, place)


def decrypted(conn: Connection, place: Sequence[str], stored: bytes) -> bytes:
    """Return a text as it was before it was encrypted, if it was.

    Raises:
        ValueError: it was not encrypted for this place, or with a key that is gone.
    """
    if not stored.startswith(MARK):
        return stored
    try:
        return decrypt_here(text_keys(conn.secrets), stored[len(MARK) :], place)
    except NotVerified as error:
        raise ValueError("not encrypted for this place") from error


def encrypted_text(conn: Connection, place: Sequence[str], body: str) -> str:
    """Return what `encrypted` does, of JSON, for scripts that take texts alone."""
    return encrypt_text(conn, place, body) if conn.encrypts and body else body


def encrypt_text(conn: Connection, place: Sequence[str], body: str) -> str:
    """Return JSON encrypted, as a text."""
    raw = encrypt_here(text_keys(conn.secrets), packed(body), place)
    return _TEXT_MARK + base64.b64encode(raw).decode()


def decrypted_text(conn: Connection, place: Sequence[str], stored: bytes) -> bytes:
    """Return a text as it was before `encrypted_text`, if it was encrypted.

    Raises:
        ValueError: as `decrypted` does.
    """
    if not stored.startswith(MARK):
        return stored
    try:
        raw = base64.b64decode(stored[len(MARK) :], validate=True)
        return unpacked(decrypt_here(text_keys(conn.secrets), raw, place))
    except (NotVerified, binascii.Error) as error:
        raise ValueError("not encrypted for this place") from error
