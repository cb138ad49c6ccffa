"""Encrypt the document of an approval with a data key of its own (AES-256-GCM).

Not encrypted are the fields of the head that scripts compare: states, times, revisions,
hashes of keys. The document is compressed first, since nothing compresses what is
encrypted.

The data key stands in the record, wrapped by a key that is derived from the secret, so
whoever deletes this one field has erased all of it. What is encrypted is bound to its
approval. The seal of the record is over what is stored, and is checked before anything
is decrypted (`record_seals`): a document that was moved fails by its seal, and fails
here where somebody could make that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keyturn.gateway.errors import ForgedRecord, NotVerified
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.trust.encryption import (
    Place,
    WrappingKeys,
    decrypt,
    encrypt,
    wrapped_by,
    wrapping_keys,
)

DATA_KEY: Final = "dk"
"""Field of the head with the wrapped data key of an encrypted record."""

MARK: Final = b"\x1e"
"""What an encrypted text begins with: neither JSON nor a packed text does."""

_MISPLACED = "what is encrypted in it belongs elsewhere"


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
