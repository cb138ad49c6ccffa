"""Seals: short message authentication codes over a text and the place it belongs to.

HMAC-SHA256, cut to 16 bytes (RFC 2104 section 5; NIST SP 800-107 section 5.3.3). What
is authenticated begins with a label and names the place: a sealed text that is copied
to another place, such as another tenant or field, does not verify there.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.derived_keys import Purpose, derived_key, key_id_of
from keyturn.gateway.trust.keyed_hash import KeyedHash

SEAL_BYTES = 16
"""How long a seal is."""


class SealKeys:
    """The keys of one purpose: the one that seals, then older ones that verify.

    Args:
        secrets: what the keys are derived from; the first one is in use.
        purpose: what they are for.

    Attributes:
        id: of the key that seals, for people: it says nothing about the key.
    """

    def __init__(self, secrets: Sequence[bytes], purpose: Purpose) -> None:
        if not secrets:
            raise ValueError("there is no secret to derive a key from")
        self._keys = [KeyedHash(derived_key(secret, purpose)) for secret in secrets]
        self.id = key_id_of(secrets[0], purpose)

    def make(self, label: str, place: Sequence[str | bytes], content: bytes) -> bytes:
        """Return the seal of a content in a place, by the key in use.

        Args:
            label: what kind of thing is sealed.
            place: names where it belongs, such as tenant and field; as many parts, and
                in the same order, for all of a label.
            content: what is sealed.
        """
        return _mac(self._keys[0], _message(label, place, content))

    def is_valid(
        self, seal: bytes, label: str, place: Sequence[str | bytes], content: bytes
    ) -> bool:
        """Return whether a seal is of this content in this place, by any key."""
        message = _message(label, place, content)
        return any(hmac.compare_digest(_mac(key, message), seal) for key in self._keys)

    def check(
        self, seal: bytes, label: str, place: Sequence[str | bytes], content: bytes
    ) -> None:
        """Accept only what was sealed in this place with one of the keys.

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
    # With its length before each part, the number of parts before all of them: no two
    # places and contents give the same bytes.
    part = label.encode()
    message = b"keyturn/v1/seal\x00%d:%d:%b" % (1 + len(place), len(part), part)
    for one in place:
        part = one.encode() if isinstance(one, str) else one
        message += b"%d:%b" % (len(part), part)
    return message + content


def _mac(key: KeyedHash, message: bytes) -> bytes:
    return key(message)[:SEAL_BYTES]
