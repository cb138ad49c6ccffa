"""A private key that signs, and the texts that it makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)

from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.protocol.receipts import enveloped, pae


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key and the name that its signatures carry."""

    public: PublicKey
    _private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, name: str, seed: bytes) -> SigningKey:
        """Return the key of 32 secret bytes (RFC 8032 section 5.1.5)."""
        private = Ed25519PrivateKey.from_private_bytes(seed)
        raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return cls(PublicKey(name, raw), private)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of a signature."""
        return self._private.sign(message)

    def envelope(self, payload_type: str, payload: bytes) -> str:
        """Return a DSSE envelope with this key's signature, as JSON text."""
        signature = self.sign(pae(payload_type, payload))
        signed = [(self.public.label, signature)]
        return enveloped(payload_type, payload, signed).to_text()
