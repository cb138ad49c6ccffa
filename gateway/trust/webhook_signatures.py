"""Write, sign and verify webhooks according to Standard Webhooks 1.0.0.

A webhook is the news that a thread of the receiving program has a decision. It contains
only ids: no tool, no arguments, no decision. The receiver asks the gateway, with its
API key, so a forged, stored or intercepted message reveals nothing and starts nothing.

A signature (``v1``, HMAC-SHA256) covers the id of the message, its time and its body. A
header may contain several, one for each secret, so that a secret can be replaced
without interruption. Secrets are derived, one for each receiver, and never stored.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.trust.seals import Purpose, derived_key

TOLERANCE_S = 5 * 60
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

_PREFIX = "whsec_"
_SECONDS = re.compile(r"[0-9]{10}", re.ASCII)
_MAX_SIGNATURES = 16


@dataclass(frozen=True, slots=True)
class Message:
    """A webhook: its id, its time in seconds, and its body."""

    id: str
    at_s: int
    body: bytes

    def signature(self, secret: bytes) -> str:
        """Return the signature with a secret."""
        signed = b"%b.%d.%b" % (self.id.encode(), self.at_s, self.body)
        raw = hmac.digest(secret, signed, "sha256")
        return f"v1,{base64.b64encode(raw).decode()}"


def headers(message: Message, secrets: Iterable[bytes]) -> dict[str, str]:
    """Return the three headers of a message, signed with these secrets."""
    return {
        ID: message.id,
        TIMESTAMP: str(message.at_s),
        SIGNATURE: " ".join(map(message.signature, secrets)),
    }


def verify_webhook(
    received: Mapping[str, str], body: bytes, *, keys: Sequence[bytes], now_s: float
) -> Message:
    """Return a message that one of the secrets signed within the last five minutes.

    Raises:
        NotVerified: ``malformed``, ``expired`` or ``signature_wrong``.
    """
    lower = {name.lower(): value for name, value in received.items()}
    id_, at, signatures = (lower.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    # A dot in the id would blur the border between signed id and signed time.
    # Undecodable bytes in a header cannot be encoded again.
    is_id = id_ and id_.isascii() and id_.isprintable() and "." not in id_
    if not is_id or not _SECONDS.fullmatch(at):
        raise NotVerified("malformed", "its id or its time is missing or wrong")
    if abs(int(at) - now_s) > TOLERANCE_S:
        raise NotVerified(
            "expired", "its time is not within five minutes; compare the clocks"
        )
    message = Message(id_, int(at), body)
    given = [one.encode("utf-8", "replace") for one in signatures.split(" ")]
    expected = [message.signature(key).encode() for key in keys]
    if not any(
        hmac.compare_digest(one, known)
        for one in given[:_MAX_SIGNATURES]
        for known in expected
    ):
        raise NotVerified("signature_wrong", "no trusted key has signed it")
    return message


def parse_webhook_secret(text: str) -> bytes:
    """Return the bytes of a secret in its text form: ``whsec_`` and base64.

    Raises:
        NotVerified: ``malformed``; the error does not show the secret.
    """
    try:
        raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotVerified("malformed", "the secret is not base64") from error
    if not 24 <= len(raw) <= 64:  # noqa: PLR2004 - the specification's bounds
        raise NotVerified("malformed", "the secret has to have 24 to 64 bytes")
    return raw


def webhook_secret(secret: bytes, tenant: str, target: str, number: int) -> bytes:
    """Return the 32-byte secret for messages to a target.

    Args:
        secret: secret of the installation.
        tenant: tenant of the threads.
        target: name of the receiver.
        number: number of the target's secret.
    """
    key = derived_key(secret, Purpose.WEBHOOKS)
    parts = [one.encode() for one in (tenant, target, str(number))]
    # With the length before each part, so that different names give different bytes.
    named = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hmac.digest(key, named, "sha256")


def webhook_secrets(
    secrets: Sequence[bytes], tenant: str, target: str, numbers: Sequence[int]
) -> list[bytes]:
    """Return all secrets that sign a message, the current one first.

    A message has a signature for each number and each secret of the installation, so
    receivers can follow a replacement of either later.
    """
    return [
        webhook_secret(secret, tenant, target, number)
        for number in numbers
        for secret in secrets
    ]


def shown(secret: bytes) -> str:
    """Return a secret in its text form: ``whsec_`` and base64."""
    return _PREFIX + base64.b64encode(secret).decode()


DECIDED: Literal["approval.decided"] = "approval.decided"
"""A call of the thread was approved, refused, answered, or ended in another way."""

TEST: Literal["webhook.test"] = "webhook.test"
"""A test message by an operator."""


class News(Record, extra="ignore"):
    """The agent, the thread and the approval of a decision."""

    agent: str = ""
    thread: str = ""
    approval: str = ""


class WebhookBody(Record, extra="ignore"):
    """The body of a message; ``timestamp`` is when it happened."""

    type: str
    timestamp: AwareDatetime
    data: News


def body_of(kind: str, news: News, at_ms: int) -> bytes:
    """Return the body of a message, the same bytes each time."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    value = {
        "type": kind,
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": news.model_dump(),
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
