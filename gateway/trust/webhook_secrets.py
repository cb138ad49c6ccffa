"""Secrets of webhooks: one for each program that is told, derived and never stored."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from twokey.gateway.trust.derived_keys import Purpose, derived_key

_PREFIX = "whsec_"


def webhook_secret(secret: bytes, tenant: str, target: str, number: int) -> bytes:
    """Return the 32 bytes that a message to a target is signed with.

    Args:
        secret: of the installation.
        tenant: whose threads.
        target: name of the receiver.
        number: which of its secrets.
    """
    key = derived_key(secret, Purpose.WEBHOOKS)
    parts = [one.encode() for one in (tenant, target, str(number))]
    # With its length before each part, so that no two names give the same bytes.
    named = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hmac.digest(key, named, "sha256")


def webhook_secrets(
    secrets: Sequence[bytes], tenant: str, target: str, numbers: Sequence[int]
) -> list[bytes]:
    """Return everything that a message is signed with, the secret in use first.

    A message carries a signature by each number, and by each secret that the
    installation still knows: whichever of them is replaced, receivers can follow later.
    """
    return [
        webhook_secret(secret, tenant, target, number)
        for number in numbers
        for secret in secrets
    ]


def shown(secret: bytes) -> str:
    """Return a secret as it is written: ``whsec_`` and base64."""
    return _PREFIX + base64.b64encode(secret).decode()
