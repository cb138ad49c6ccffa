"""Encrypt the record of an approval with a data key of its own (AES-256-GCM).

Encrypted are what is pinned at the opening, and the texts that change: arguments, their
edits, results, people, and all that anybody wrote. Not encrypted are the small fields
that scripts compare: states, times, revisions, hashes of keys. A text is compressed
first, since nothing compresses what is encrypted.

The data key stands in the record, wrapped by a key that is derived from the secret, so
whoever deletes this one field has erased all of it. What is encrypted is bound to its
approval, tenant and field; what is pinned names the tenant itself, so it is bound to
approval and field. The seal of the record is over what is stored, and is checked before
anything is decrypted (`record_seals`): a text that was moved fails by its seal, and
fails here where somebody could make that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

from twokey.gateway.errors import ForgedRecord, NotVerified
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.packing import packed, unpacked
from twokey.gateway.trust.encryption import (
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

_KINDS: Final = {"d", "r", "late", "acknowledged", "remarks", "inquiries", "uses"}

_PINNED = "pinned"
_MISPLACED = "what is encrypted in it belongs elsewhere"


class RecordEncryption:
    """Encrypts and decrypts the records of one store.

    Args:
        conn: the store.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    @property
    def _keys(self) -> WrappingKeys:
        return wrapping_keys(self._conn.secrets)

    def opening(self, approval_id: str, pinned: bytes) -> tuple[bytes, bytes]:
        """Return what is pinned of a new approval as it is stored, and its data key.

        The data key is wrapped; it is empty where the store does not encrypt.
        """
        if not self._conn.encrypts:
            return pinned, b""
        key, wrapped = self._keys.new_data_key("", approval_id)
        place = Place("", approval_id, _PINNED)
        return MARK + encrypt(key, pinned, place), wrapped

    def changes(
        self,
        approval_id: str,
        tenant: str,
        head: Mapping[str, bytes],
        texts: Mapping[str, str | bool],
    ) -> dict[str, str | bool]:
        """Return the texts that a change writes, as scripts take them.

        Those of an encrypted record are encrypted; they are hexadecimal behind a mark.
        Its data key is wrapped again where that was done by an older secret.

        Args:
            approval_id: of the approval.
            tenant: whose it is.
            head: as it is stored now.
            texts: what to write into which field, or False to delete it.
        """
        if not (wrapped := head.get(DATA_KEY)):
            return dict(texts)
        key = self._keys.unwrap(wrapped, "", approval_id)
        found: dict[str, str | bool] = {}
        for name, value in texts.items():
            if isinstance(value, bool) or not may_be_encrypted(name):
                found[name] = value
                continue
            place = Place(tenant, approval_id, name)
            found[name] = MARK.decode() + encrypt(key, packed(value), place).hex()
        if wrapped_by(wrapped) != self._keys.current:
            found[DATA_KEY] = self._keys.wrap(key, "", approval_id).hex()
        return found

    def opened(
        self, approval_id: str, head: Mapping[str, bytes], pinned: bytes
    ) -> tuple[Mapping[str, bytes], bytes]:
        """Return head and pinned with their texts as they were before encryption.

        Raises:
            ForgedRecord: when one was not encrypted for this place.
            NewerRecord: when a newer version packed it.
            ValueError: when it is damaged.
        """
        names = [name for name, text in head.items() if _is_encrypted(name, text)]
        if not (names or is_encrypted(pinned)):
            return head, pinned
        try:
            key = self._keys.unwrap(head.get(DATA_KEY, b""), "", approval_id)
            pinned = _decrypted_pinned(key, approval_id, pinned)
            tenant, found = _tenant_of(pinned) if names else "", dict(head)
            for name in names:
                place = Place(tenant, approval_id, name)
                found[name] = unpacked(decrypt(key, head[name][len(MARK) :], place))
        except NotVerified as error:
            raise ForgedRecord(approval_id, _MISPLACED) from error
        return found, pinned

    def pinned(
        self, approval_id: str, head: Mapping[str, bytes], pinned: bytes
    ) -> bytes:
        """Return what is pinned of a record of which nothing else is believed.

        Empty where it cannot be read.
        """
        if not is_encrypted(pinned):
            return pinned
        try:
            key = self._keys.unwrap(head.get(DATA_KEY, b""), "", approval_id)
            return _decrypted_pinned(key, approval_id, pinned)
        except NotVerified:
            return b""


def may_be_encrypted(name: str) -> bool:
    """Return whether a field of the head may be encrypted."""
    return name.rpartition(":")[2] in _KINDS


def is_encrypted(pinned: bytes) -> bool:
    """Return whether what is pinned is encrypted."""
    return pinned.startswith(MARK)


def _decrypted_pinned(key: bytes, approval_id: str, pinned: bytes) -> bytes:
    if not is_encrypted(pinned):
        return pinned
    return decrypt(key, pinned[len(MARK) :], Place("", approval_id, _PINNED))


def _is_encrypted(name: str, text: bytes) -> bool:
    return text.startswith(MARK) and may_be_encrypted(name)


def _tenant_of(pinned: bytes) -> str:
    found = cast("JsonObject", json.loads(unpacked(pinned)))
    return str(found["tenant"])
