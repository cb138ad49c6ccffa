"""HMAC-SHA256 with the key prepared once, for keys that authenticate many messages.

`hmac.digest` hashes the key anew for each message and has OpenSSL look up the function
again, which takes longer than to hash a short message. What follows from the key alone
is kept instead, as RFC 2104 section 4 describes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

_BLOCK_BYTES: Final = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class KeyedHash:
    """HMAC-SHA256 by one key (RFC 2104); equal to ``hmac.digest(key, …, "sha256")``.

    Args:
        key: secret; at least as long as the hash, by RFC 2104 section 3.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        short = hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key
        block = short.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def __call__(self, message: bytes) -> bytes:
        """Return the 32 bytes of a message. Compare them in constant time."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


@lru_cache(maxsize=64)
def keyed_hash(key: bytes) -> KeyedHash:
    """Return the hash by a key, prepared once."""
    return KeyedHash(key)
