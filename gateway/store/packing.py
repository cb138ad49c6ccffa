"""Compress the JSON of a record with zlib.

JSON begins with a brace or a bracket and a zlib stream with 0x78, so both can be told
apart.
"""

from __future__ import annotations

import zlib

MOST_BYTES = 64 * 2**20
"""Limit of a decompressed text, in bytes: a forged stream could fill the memory."""

_PLAIN = b"{["


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
