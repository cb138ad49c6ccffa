"""Read signed envelopes of the Dead Simple Signing Envelope format, DSSE v1.0.2.

An envelope is a JSON object with a payload, its type, and signatures over both. Whoever
reads one gets the very bytes that were verified, and never parses the envelope again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from twokey.gateway.errors import BadJson, NotVerified
from twokey.gateway.protocol.public_keys import PublicKey
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.strict_json import parse_object

MAX_ENVELOPE_BYTES = 256 * 1024
"""What a text may have before it is parsed: three times the largest payload."""

MAX_SIGNATURES = 16


class Signature(Record):
    """A signature, and a hint which key made it."""

    keyid: str = ""
    sig: str


class Envelope(Record):
    """An envelope as it stands in JSON; nothing of it is verified."""

    payload: str
    payloadType: str  # noqa: N815 - as the format spells it
    signatures: tuple[Signature, ...]

    def to_text(self) -> str:
        """Return its JSON text, which is the same for the same envelope."""
        return json.dumps(self.model_dump(), separators=(",", ":"))


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what is signed: type and payload with their lengths in bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def enveloped(
    payload_type: str, payload: bytes, signatures: Iterable[tuple[str, bytes]]
) -> Envelope:
    """Put a payload into an envelope with signatures, each with its key's label."""
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payloadType=payload_type,
        signatures=tuple(
            Signature(keyid=label, sig=base64.b64encode(signature).decode())
            for label, signature in signatures
        ),
    )


def parse_envelope(text: str | bytes) -> Envelope:
    """Return the envelope of a text.

    Raises:
        NotVerified: ``malformed``.
    """
    if len(text) > MAX_ENVELOPE_BYTES:
        raise NotVerified("malformed", f"it is larger than {MAX_ENVELOPE_BYTES} bytes")
    try:
        found = Envelope.model_validate(parse_object(text))
    except (BadJson, ValidationError) as error:
        raise NotVerified("malformed", "it is not a DSSE envelope") from error
    if not 0 < len(found.signatures) <= MAX_SIGNATURES:
        raise NotVerified(
            "malformed",
            f"it needs 1 to {MAX_SIGNATURES} signatures, not {len(found.signatures)}",
        )
    return found


def verified(
    envelope: Envelope, *, payload_type: str, keys: Sequence[PublicKey]
) -> tuple[bytes, PublicKey]:
    """Return the payload, and the first of the keys that has signed it.

    The key ids in the envelope decide nothing (DSSE, protocol.md): each signature is
    tried with each key.

    Raises:
        NotVerified: ``malformed``, ``type_wrong`` or ``signature_wrong``.
    """
    payload = _decoded(envelope.payload)
    message = pae(envelope.payloadType, payload)
    for signature in envelope.signatures:
        raw = _decoded(signature.sig)
        for key in keys:
            if key.has_signed(message, raw):
                if envelope.payloadType != payload_type:
                    raise NotVerified(
                        "type_wrong", f"its type is {envelope.payloadType[:100]!r}"
                    )
                return payload, key
    raise NotVerified("signature_wrong", "no trusted key has signed it")


def _decoded(text: str) -> bytes:
    # Both alphabets, as the format demands.
    try:
        return base64.b64decode(text.translate(_STANDARD), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotVerified("malformed", "a part of it is not base64") from error


_STANDARD = str.maketrans("-_", "+/")
