"""Seals: short message authentication codes over a text and its place.

HMAC-SHA256, cut to 16 bytes (RFC 2104 section 5; NIST SP 800-107 section 5.3.3). The
authenticated message begins with a label and names the place: a sealed text that is
copied to another place, such as another tenant or field, is invalid there.

Each purpose has a separate key, derived from one secret (HKDF, RFC 5869). Keys of
different purposes are independent: a key that seals buttons cannot authenticate a
record.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from keyturn.gateway.errors import NotVerified

KEY_BYTES = 32

SEAL_BYTES = 16
"""Length of a seal in bytes."""


class SealKeys:
    """The keys of one purpose: the sealing key, then older ones that verify.

    Args:
        secrets: secrets for the derivation of keys; the first one is current.
        purpose: purpose of the keys.

    Attributes:
        id: id of the sealing key, for people; it reveals nothing about the key.
    """

    def __init__(self, secrets: Sequence[bytes], purpose: Purpose) -> None:
        if not secrets:
            raise ValueError("there is no secret to derive a key from")
        self._keys = [derived_key(secret, purpose) for secret in secrets]
        self.id = key_id_of(secrets[0], purpose)

    def make(self, label: str, place: Sequence[str | bytes], content: bytes) -> bytes:
        """Return the seal of a content at a place, with the current key.

        Args:
            label: kind of the sealed content.
            place: names of the place, such as tenant and field; the same number of
                parts, in the same order, for all contents of a label.
            content: the sealed content.
        """
        return _mac(self._keys[0], _message(label, place, content))

    def is_valid(
        self, seal: bytes, label: str, place: Sequence[str | bytes], content: bytes
    ) -> bool:
        """Return whether a seal is valid for this content at this place, by any key."""
        message = _message(label, place, content)
        return any(hmac.compare_digest(_mac(key, message), seal) for key in self._keys)

    def check(
        self, seal: bytes, label: str, place: Sequence[str | bytes], content: bytes
    ) -> None:
        """Accept only a content that was sealed for this place with one of the keys.

        Raises:
            NotVerified: ``seal_wrong``.
        """
        if not self.is_valid(seal, label, place, content):
            raise NotVerified("seal_wrong", "it was not sealed here with a known key")


@lru_cache(maxsize=64)
def seal_keys(secrets: tuple[bytes, ...], purpose: Purpose) -> SealKeys:
    """Return the keys of a purpose, derived once."""
    return SealKeys(secrets, purpose)


def _message(label: str, place: Sequence[str | bytes], content: bytes) -> bytes:
    # With the number of parts first and a length before each part, so that different
    # places and contents give different bytes.
    part = label.encode()
    message = b"keyturn/v1/seal\x00%d:%d:%b" % (1 + len(place), len(part), part)
    for one in place:
        part = one.encode() if isinstance(one, str) else one
        message += b"%d:%b" % (len(part), part)
    return message + content


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")[:SEAL_BYTES]


class Purpose(StrEnum):
    """The use of a derived key; the text is part of its derivation."""

    RECORDS = "keyturn/v1/records"
    AUDIT_ENTRIES = "keyturn/v1/audit-entries"
    FACTS = "keyturn/v1/facts"
    DATA_KEYS = "keyturn/v1/data-keys"
    TEXTS = "keyturn/v1/texts"
    WEBHOOKS = "keyturn/v1/webhooks"


@lru_cache(maxsize=64)
def derived_key(secret: bytes, purpose: Purpose) -> bytes:
    """Return the 32-byte key of a purpose; equal secrets give equal keys."""
    # No salt: the secret is already 32 random bytes (RFC 5869 section 3.1).
    hkdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode())
    return hkdf.derive(secret)


def key_id_of(secret: bytes, purpose: Purpose) -> str:
    """Return the derived key's id: 8 hex digits that reveal nothing about the key."""
    info = f"{purpose}/id".encode()
    hkdf = HKDF(algorithm=SHA256(), length=4, salt=None, info=info)
    return hkdf.derive(secret).hex()
