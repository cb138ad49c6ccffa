"""Seal what people said of earlier calls, where it stands outside of their record.

Models and reviewers read it, so who can write to the store must not be able to put
words in somebody's mouth. The seal stands before the text, as scripts take texts alone,
and is over what is stored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from twokey.gateway.store.connection import Connection
from twokey.gateway.store.text_encryption import decrypted_text, encrypted_text
from twokey.gateway.trust.derived_keys import Purpose
from twokey.gateway.trust.seals import SealKeys, seal_keys

_SEAL: Final = 24
"""Characters of a seal in base64."""


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

    An older version wrote it without a seal.

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
