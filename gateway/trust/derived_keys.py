"""Keys for one purpose each, derived from one secret (HKDF, RFC 5869).

A key of one purpose says nothing about those of others: what seals a button cannot
authenticate a record.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32


class Purpose(StrEnum):
    """What a derived key is for; the text is part of its derivation."""

    RECORDS = "keyturn/v1/records"
    AUDIT_ENTRIES = "keyturn/v1/audit-entries"
    FACTS = "keyturn/v1/facts"
    DATA_KEYS = "keyturn/v1/data-keys"
    TEXTS = "keyturn/v1/texts"
    API_KEYS = "keyturn/v1/api-keys"
    WEBHOOKS = "keyturn/v1/webhooks"


@lru_cache(maxsize=64)
def derived_key(secret: bytes, purpose: Purpose) -> bytes:
    """Return the 32 bytes of a purpose; the same for the same secret."""
    # Without a salt: the secret is 32 random bytes already (RFC 5869 section 3.1).
    hkdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode())
    return hkdf.derive(secret)


def key_id_of(secret: bytes, purpose: Purpose) -> str:
    """Return 8 hex digits that name a derived key; they say nothing about it."""
    info = f"{purpose}/id".encode()
    hkdf = HKDF(algorithm=SHA256(), length=4, salt=None, info=info)
    return hkdf.derive(secret).hex()
