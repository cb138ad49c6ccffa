"""Sign and verify webhooks as the Standard Webhooks specification 1.0.0 says.

A signature covers the id of the message, its time and its body. A header may hold
several, one for each key, so that a secret can be replaced without a gap: ``v1`` is
HMAC-SHA256 with a shared secret, ``v1a`` Ed25519.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from twokey.gateway.errors import NotVerified
from twokey.gateway.protocol.public_keys import PublicKey
from twokey.gateway.trust.signing_key import SigningKey

TOLERANCE_S = 5 * 60
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix and no secret
_SECONDS = re.compile(r"[0-9]{10}", re.ASCII)
_MAX_SIGNATURES = 16


@dataclass(frozen=True, slots=True)
class Message:
    """A webhook: its id, the second when it is sent, and its body."""

    id: str
    at_s: int
    body: bytes

    @property
    def signed(self) -> bytes:
        """Return the bytes that are signed."""
        return b"%b.%d.%b" % (self.id.encode(), self.at_s, self.body)


def headers(message: Message, keys: Iterable[bytes | SigningKey]) -> dict[str, str]:
    """Return the three headers; bytes are shared secrets, keys sign with Ed25519."""
    return {
        ID: message.id,
        TIMESTAMP: str(message.at_s),
        SIGNATURE: " ".join(_signature(message, key) for key in keys),
    }


def verify_webhook(
    received: Mapping[str, str],
    body: bytes,
    *,
    keys: Sequence[bytes | PublicKey],
    now_s: float,
) -> Message:
    """Return a message that one of the keys has signed within five minutes.

    The receiver keeps its id for as long, and refuses a second message with it.

    Raises:
        NotVerified: ``malformed``, ``expired``, ``not_yet`` or ``signature_wrong``.
    """
    lower = {name.lower(): value for name, value in received.items()}
    id_, at, signatures = (lower.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    # A dot in the id would move the border between what is signed as id and as time.
    # What servers decode of bytes that are no text cannot be encoded again.
    if not _is_id(id_) or not _SECONDS.fullmatch(at):
        raise NotVerified("malformed", "its id or its time is missing or wrong")
    if int(at) < now_s - TOLERANCE_S:
        raise NotVerified(
            "expired", "it was sent more than five minutes ago; compare the clocks"
        )
    if int(at) > now_s + TOLERANCE_S:
        raise NotVerified("not_yet", "it was sent in the future; compare the clocks")
    message = Message(id_, int(at), body)
    given = signatures.split(" ")[:_MAX_SIGNATURES]
    if not any(_is_by(message, one, key) for one in given for key in keys):
        raise NotVerified("signature_wrong", "no trusted key has signed it")
    return message


def parse_webhook_secret(text: str) -> bytes:
    """Return the bytes of a secret as it is written: ``whsec_`` and base64.

    Raises:
        NotVerified: ``malformed``; does not show it.
    """
    try:
        raw = base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotVerified("malformed", "the secret is not base64") from error
    if not 24 <= len(raw) <= 64:  # noqa: PLR2004 - the specification's bounds
        raise NotVerified("malformed", "the secret has to have 24 to 64 bytes")
    return raw


def _is_id(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and "." not in text


def _signature(message: Message, key: bytes | SigningKey) -> str:
    if isinstance(key, SigningKey):
        return f"v1a,{base64.b64encode(key.sign(message.signed)).decode()}"
    return f"v1,{base64.b64encode(_hmac(message, key)).decode()}"


def _is_by(message: Message, signature: str, key: bytes | PublicKey) -> bool:
    version, _, encoded = signature.partition(",")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    if isinstance(key, PublicKey):
        return version == "v1a" and key.has_signed(message.signed, raw)
    return version == "v1" and hmac.compare_digest(_hmac(message, key), raw)


def _hmac(message: Message, secret: bytes) -> bytes:
    return hmac.new(secret, message.signed, hashlib.sha256).digest()
