"""Public keys that verify signatures, each in one line of text.

The text is a verifier key of the C2SP note format (c2sp.org/signed-note): the key's
name, its id and the key, joined by ``+``. The id is computed from the other two, so a
mistyped text is refused. All signatures of Keyturn are Ed25519 (RFC 8032).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from keyturn.gateway.errors import SettingsError

KEY_BYTES = 32
_ED25519 = b"\x01"
"""The type of an Ed25519 key in a verifier key and in the input of its id."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", re.ASCII)
_ID = re.compile(r"[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key, with the name of the signer."""

    name: str
    raw: bytes

    @property
    def id(self) -> bytes:
        """Return the 4-byte id by which a signature refers to its key."""
        return key_id(self.name, self.raw)

    @property
    def label(self) -> str:
        """Return name and id, as shown in signatures and lists of keys."""
        return f"{self.name}+{self.id.hex()}"

    @property
    def text(self) -> str:
        """Return the whole key as one line that `parse_public_key` reads."""
        encoded = base64.b64encode(_ED25519 + self.raw).decode()
        return f"{self.label}+{encoded}"

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether this key made the signature of exactly this message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@lru_cache(maxsize=64)
def key_id(name: str, raw: bytes) -> bytes:
    """Return the id of an Ed25519 key (c2sp.org/signed-note, "Signatures")."""
    named = name.encode() + b"\n" + _ED25519 + raw
    return hashlib.sha256(named).digest()[:4]


def parse_public_key(text: str) -> PublicKey:
    """Parse a public key of one line.

    Raises:
        SettingsError: when it is not a complete key; quotes the text, which is not
            secret.
    """
    # The encoded part may contain a plus.
    name, _, rest = text.strip().partition("+")
    id_, _, encoded = rest.partition("+")
    if not _NAME.fullmatch(name) or not _ID.fullmatch(id_):
        raise _refused(text, "it has to be <name>+<8 hex digits>+<base64>")
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise _refused(text, "its last part is not base64") from error
    if len(decoded) != 1 + KEY_BYTES or decoded[:1] != _ED25519:
        raise _refused(text, "it is not an Ed25519 key of 32 bytes")
    key = PublicKey(name, decoded[1:])
    if key.id.hex() != id_:
        raise _refused(text, "its id does not belong to its name and key")
    return key


def _refused(text: str, problem: str) -> SettingsError:
    return SettingsError(
        f"The public key {text.strip()[:200]!r} cannot be used: {problem}. Copy the "
        "whole line that `keyturn keys list` prints."
    )
