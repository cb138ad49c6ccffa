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
class EncryptionKeys:
    """Keys of one purpose, by id: the current one, then older ones."""

    current: str
    _keys: Mapping[str, bytes] = field(repr=False)

    def encrypt(self, text: bytes, place: Sequence[str]) -> bytes:
        """Return the current key's id, and a text encrypted with it for a place."""
        key = self._keys[self.current]
        return bytes.fromhex(self.current) + encrypt(key, text, place)

    def decrypt(self, stored: bytes, place: Sequence[str]) -> bytes:
        """Return a text that `encrypt` encrypted for this place.

        Raises:
            NotVerified: ``key_unknown`` when its key is gone, ``changed`` when it was
                modified or encrypted for another place.
        """
        id_ = encrypted_by(stored)
        if id_ not in self._keys:
            raise NotVerified("key_unknown", f"the key {id_!r} is not configured")
        return decrypt(self._keys[id_], stored[_KEY_ID_BYTES:], place)


def encrypted_by(stored: bytes) -> str:
    """Return the id of the key with which a text was encrypted."""
    return stored[:_KEY_ID_BYTES].hex()


@lru_cache(maxsize=16)
def encryption_keys(secrets: tuple[bytes, ...], purpose: Purpose) -> EncryptionKeys:
    """Return the keys of a purpose, derived from secrets; the first one is current."""
    ids = [key_id_of(one, purpose) for one in secrets]
    keys = [derived_key(one, purpose) for one in secrets]
    return EncryptionKeys(ids[0], dict(zip(ids, keys, strict=True)))


def encrypt(key: bytes, text: bytes, place: Sequence[str]) -> bytes:
    """Return nonce, ciphertext and tag: 28 bytes more than the text."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, _associated(place))


def decrypt(key: bytes, encrypted: bytes, place: Sequence[str]) -> bytes:
    """Return a text that was encrypted with this key for this place.

    Raises:
        NotVerified: ``changed``.
    """
    nonce, rest = encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:]
    try:
        return AESGCM(key).decrypt(nonce, rest, _associated(place))
    except (InvalidTag, ValueError) as error:
        raise NotVerified(
            "changed", "it was changed, or belongs to another place or key"
        ) from error


def _associated(place: Sequence[str]) -> bytes:
    """Return a place as bytes, different for any two places."""
    encoded = [part.encode() for part in place]
    # With the length before each part: a name may contain any separator.
    joined = b"".join(b"%d:%b" % (len(part), part) for part in encoded)
    return b"keyturn/v1/text\x00" + joined
