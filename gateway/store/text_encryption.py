"""Encrypt texts of the store that belong to no record: events, facts, jobs, verdicts.

They are bound to their place, and encrypted with a key that is derived from the secret
(AES-256-GCM). Whoever reads one reads plain texts as well: a store may hold both.

What people said of earlier calls is sealed as well where it is outside of a record:
models and reviewers read it, and nobody may put words in somebody's mouth. The seal is
before the text, since scripts take texts alone, and is over what is stored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.packing import packed, unpacked
from keyturn.gateway.store.record_encryption import MARK
from keyturn.gateway.trust.derived_keys import Purpose
from keyturn.gateway.trust.encryption import decrypt_here, encrypt_here, text_keys
from keyturn.gateway.trust.seals import SealKeys, seal_keys

_TEXT_MARK: Final = MARK.decode()
_SEAL: Final = 24
"""Characters of a seal in base64."""


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


def sealed_words(conn: Connection, place: Sequence[str], body: str) -> str:
    """Return JSON as it is stored: its seal, and the text, encrypted where it is to be.

    Args:
        conn: to the store, whose secrets seal.
        place: where it stands; the first part says what kind of text it is.
        body: JSON.
    """
    text = encrypted_text(conn, place, body)
    return seal_of_words(conn, place, text) + text


def seal_of_words(conn: Connection, place: Sequence[str], text: str) -> str:
    """Return the seal of a text that stands in a place as it is."""
    seal = _keys(conn).make(place[0], place[1:], text.encode())
    return binascii.b2a_base64(seal, newline=False).decode()


def opened_words(
    conn: Connection, place: Sequence[str], stored: bytes
) -> tuple[bytes, bool]:
    """Return JSON that is stored, and whether it was sealed for this place.

    Raises:
        ValueError: it was encrypted, and not for this place.
    """
    try:
        seal, text = base64.b64decode(stored[:_SEAL], validate=True), stored[_SEAL:]
    except binascii.Error:
        seal, text = b"", stored
    if not (seal and _keys(conn).is_valid(seal, place[0], place[1:], text)):
        seal, text = b"", stored
    return decrypted_text(conn, place, text), bool(seal)


def _keys(conn: Connection) -> SealKeys:
    return seal_keys(conn.secrets, Purpose.FACTS)
