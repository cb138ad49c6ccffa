"""Encrypt stored texts: one data key per approval, wrapped by another key.

AES-256-GCM with a random nonce of 12 bytes (NIST SP 800-38D). The associated data names
the place of a text, so that it decrypts nowhere else. A data key encrypts the texts of
one approval, far below the limit of 2^32 for one key (section 8.3). Deleting the
wrapped data key erases the texts that it encrypted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.seals import Purpose, derived_key, key_id_of

KEY_BYTES = 32
_NONCE_BYTES = 12
_KEY_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an encrypted text; it decrypts only for this place."""

    tenant: str
    approval: str
    field: str
    rev: int = 0

    @property
    def associated(self) -> bytes:
        """Return the place as bytes, different for any two places."""
        parts = (self.tenant, self.approval, self.field, str(self.rev))
        encoded = [part.encode() for part in parts]
        # With the length before each part: a name may contain any separator.
        joined = b"".join(b"%d:%b" % (len(part), part) for part in encoded)
        return b"keyturn/v1/text\x00" + joined


@dataclass(frozen=True, slots=True)
class WrappingKeys:
    """Keys that wrap data keys, by id: the current one, then older ones."""

    current: str
    _keys: Mapping[str, bytes] = field(repr=False)

    def key(self, id_: str) -> bytes:
        """Return a key by its id.

        Raises:
            NotVerified: ``key_unknown``.
        """
        if id_ not in self._keys:
            raise NotVerified("key_unknown", f"the key {id_!r} is not configured")
        return self._keys[id_]

    def new_data_key(self, tenant: str, approval: str) -> tuple[bytes, bytes]:
        """Return a new data key, and its wrapped form for the store."""
        key = os.urandom(KEY_BYTES)
        return key, self.wrap(key, tenant, approval)

    def wrap(self, data_key: bytes, tenant: str, approval: str) -> bytes:
        """Return the current key's id, and the data key encrypted with that key."""
        id_ = bytes.fromhex(self.current)
        place = Place(tenant, approval, "data key")
        return id_ + encrypt(self._keys[self.current], data_key, place)

    def unwrap(self, wrapped: bytes, tenant: str, approval: str) -> bytes:
        """Return a data key.

        Raises:
            NotVerified: ``key_unknown`` when its key is gone, ``changed`` when it was
                modified or wrapped for another approval.
        """
        place = Place(tenant, approval, "data key")
        return decrypt(self.key(wrapped_by(wrapped)), wrapped[_KEY_ID_BYTES:], place)


def wrapped_by(wrapped: bytes) -> str:
    """Return the id of the key that wraps a data key."""
    return wrapped[:_KEY_ID_BYTES].hex()


@lru_cache(maxsize=16)
def wrapping_keys(secrets: tuple[bytes, ...]) -> WrappingKeys:
    """Return the keys derived from these secrets; the first one is current."""
    ids = [key_id_of(one, Purpose.DATA_KEYS) for one in secrets]
    keys = [derived_key(one, Purpose.DATA_KEYS) for one in secrets]
    return WrappingKeys(ids[0], dict(zip(ids, keys, strict=True)))


@lru_cache(maxsize=16)
def text_keys(secrets: tuple[bytes, ...]) -> WrappingKeys:
    """Return the keys for texts outside approvals; the first one is current."""
    ids = [key_id_of(one, Purpose.TEXTS) for one in secrets]
    keys = [derived_key(one, Purpose.TEXTS) for one in secrets]
    return WrappingKeys(ids[0], dict(zip(ids, keys, strict=True)))


def encrypt_here(keys: WrappingKeys, text: bytes, place: Sequence[str]) -> bytes:
    """Return the current key's id, and a text encrypted with it for a place."""
    encrypted = encrypt(keys.key(keys.current), text, _place_of(place))
    return bytes.fromhex(keys.current) + encrypted


def decrypt_here(keys: WrappingKeys, stored: bytes, place: Sequence[str]) -> bytes:
    """Return a text that `encrypt_here` encrypted for this place.

    Raises:
        NotVerified: ``key_unknown`` or ``changed``.
    """
    key = keys.key(wrapped_by(stored))
    return decrypt(key, stored[_KEY_ID_BYTES:], _place_of(place))


def _place_of(place: Sequence[str]) -> Place:
    # With the length before each part, so that different places give different texts.
    return Place("", "", "".join(f"{len(one)}:{one}" for one in place))


def encrypt(key: bytes, text: bytes, place: Place) -> bytes:
    """Return nonce, ciphertext and tag: 28 bytes more than the text."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, place.associated)


def decrypt(key: bytes, encrypted: bytes, place: Place) -> bytes:
    """Return a text that was encrypted with this key for this place.

    Raises:
        NotVerified: ``changed``.
    """
    nonce, rest = encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:]
    try:
        return AESGCM(key).decrypt(nonce, rest, place.associated)
    except (InvalidTag, ValueError) as error:
        raise NotVerified(
            "changed", "it was changed, or belongs to another place or key"
        ) from error
