"""Compress and encrypt what the store keeps (AES-256-GCM).

The document of an approval has a data key of its own. Not encrypted are the fields of
the head that scripts compare: states, times, revisions, hashes of keys. The document is
compressed first, since nothing compresses what is encrypted.

The data key is a field of the record, wrapped by a key that is derived from the secret,
so whoever deletes this one field has erased all of it. What is encrypted is bound to
its approval. The seal of the record is over what is stored, and is checked before
anything is decrypted (`record_seals`): a document that was moved fails by its seal, and
fails here where somebody could make that.

Texts that belong to no record (events, facts, jobs, verdicts) are bound to their place,
and encrypted with a key that is derived from the secret. Whoever reads one reads plain
texts as well: a store may hold both.

What people said of earlier calls is sealed as well where it is outside of a record:
models and reviewers read it, and nobody may put words in somebody's mouth. The seal is
before the text, since scripts take texts alone, and is over what is stored.

JSON begins with a brace or a bracket and a zlib stream with 0x78, so a reader can tell
both apart.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from keyturn.gateway.errors import ForgedRecord, NotVerified
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.trust.encryption import (
    Place,
    WrappingKeys,
    decrypt,
    decrypt_here,
    encrypt,
    encrypt_here,
    text_keys,
    wrapped_by,
    wrapping_keys,
)
from keyturn.gateway.trust.seals import Purpose, SealKeys, seal_keys

DATA_KEY: Final = "dk"
"""Field of the head with the wrapped data key of an encrypted record."""

MARK: Final = b"\x1e"
"""What an encrypted text begins with: neither JSON nor a packed text does."""

_MISPLACED = "what is encrypted in it belongs elsewhere"

_TEXT_MARK: Final = MARK.decode()
_SEAL: Final = 24
"""Characters of a seal in base64."""

MOST_BYTES = 64 * 2**20
"""Limit of a decompressed text, in bytes: a forged stream could fill the memory."""

_PLAIN = b"{["


class RecordEncryption:
    """Encrypts and decrypts the documents of one store.

    Args:
        conn: the store.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    @property
    def _keys(self) -> WrappingKeys:
        return wrapping_keys(self._conn.secrets)

    def stored(
        self, approval_id: str, document: bytes, wrapped: bytes = b""
    ) -> tuple[bytes, bytes]:
        """Return a document as it is stored, and its data key, wrapped.

        The data key is empty where nothing is encrypted. It is wrapped again where that
        was done by an older secret.

        Args:
            approval_id: of the approval.
            document: from `codec.document`.
            wrapped: the data key that the record has; empty for none.
        """
        if wrapped:
            key = self._keys.unwrap(wrapped, "", approval_id)
            if wrapped_by(wrapped) != self._keys.current:
                wrapped = self._keys.wrap(key, "", approval_id)
        elif self._conn.encrypts:
            key, wrapped = self._keys.new_data_key("", approval_id)
        else:
            return document, b""
        return MARK + encrypt(key, document, _place(approval_id)), wrapped

    def opened(
        self, approval_id: str, head: Mapping[str, bytes], document: bytes
    ) -> bytes:
        """Return a document as it was before encryption.

        Raises:
            ForgedRecord: when it was not encrypted for this approval.
        """
        if not document.startswith(MARK):
            return document
        try:
            key = self._keys.unwrap(head.get(DATA_KEY, b""), "", approval_id)
            return decrypt(key, document[len(MARK) :], _place(approval_id))
        except NotVerified as error:
            raise ForgedRecord(approval_id, _MISPLACED) from error


def _place(approval_id: str) -> Place:
    return Place("", approval_id, "document")


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


def packed(text: str) -> bytes:
    """Return a JSON text as it is stored: compressed if that is shorter."""
    plain = text.encode("utf-8")
    body = zlib.compress(plain)
    return body if len(body) < len(plain) else plain


def unpacked(stored: bytes) -> bytes:
    """Return the JSON that was stored.

    Raises:
        ValueError: when it is damaged, or longer than `MOST_BYTES`.
    """
    if not stored or stored[0] in _PLAIN:
        return stored
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(stored, MOST_BYTES)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not inflate.eof or inflate.unused_data:
        raise ValueError("damaged")
    return plain
