"""Deliver requests to the app over HTTP, signed as Slack signs them."""

import hashlib
import hmac
import json
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import assert_never
from urllib.parse import urlencode

import aiohttp

from keyturn.sandbox.clock import Clock
from keyturn.sandbox.delivery import (
    Ack,
    Answer,
    Envelope,
    EnvelopeKind,
    NoAck,
    Retry,
    within_deadline,
)
from keyturn.sandbox.json_types import JsonObject, as_object

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
SIGNATURE = "X-Slack-Signature"
TIMESTAMP = "X-Slack-Request-Timestamp"
# Slack's documentation tells apps to refuse requests older than five minutes. A minute
# more, or a forged time in the future would be inside the window when it arrives late.
OUTSIDE_WINDOW_S = 360
LOG_KEPT = 1_000


class Forgery(StrEnum):
    """The difference between a resent request and the original."""

    NONE = "none"
    """None: the same bytes under the same signature, a replay."""
    FRESH = "fresh"
    """None: the same body, signed again, as in a repeated delivery."""
    BAD_SIGNATURE = "bad_signature"
    WRONG_SECRET = "wrong_secret"  # noqa: S105 - a name, not a secret
    TAMPERED_BODY = "tampered_body"
    OLD = "old"
    FUTURE = "future"
    MISSING_SIGNATURE = "missing_signature"
    MISSING_TIMESTAMP = "missing_timestamp"
    NON_ASCII_SIGNATURE = "non_ascii_signature"
    NON_NUMERIC_TIMESTAMP = "non_numeric_timestamp"


FORGED_HEADERS: dict[Forgery, dict[str, str | None]] = {
    Forgery.BAD_SIGNATURE: {SIGNATURE: "v0=" + "0" * 64},
    Forgery.MISSING_SIGNATURE: {SIGNATURE: None},
    Forgery.MISSING_TIMESTAMP: {TIMESTAMP: None},
    Forgery.NON_ASCII_SIGNATURE: {SIGNATURE: "v0=\u00fcn\u00efcode"},
    Forgery.NON_NUMERIC_TIMESTAMP: {TIMESTAMP: "yesterday"},
}
"""The headers that a forgery replaces, or removes (None)."""


@dataclass(slots=True)
class SentRequest:
    """A request to the app, and the status of its answer.

    `status` is None without an answer.
    """

    url: str
    headers: dict[str, str]
    body: bytes
    at: float
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """The app's answer to a resent request."""

    status: int
    body: str


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return Slack's v0 signature over the raw body.

    Source: https://docs.slack.dev/authentication/verifying-requests-from-slack
    """
    base = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()


class SignedHttp:
    """Post envelopes to the app's request URL.

    Attributes:
        url: the app's request URL for interactions, commands and events.
        sent: the newest requests, oldest first.
    """

    def __init__(
        self, clock: Clock, secret: str, session: aiohttp.ClientSession
    ) -> None:
        self.url = ""
        self.sent: list[SentRequest] = []
        self._clock = clock
        self._secret = secret
        self._session = session

    @property
    def connected(self) -> bool:
        """Return True if a request URL is set."""
        return bool(self.url)

    async def send(self, envelope: Envelope, retry: Retry | None) -> Answer:
        """Post an envelope once; see `Transport.send`."""
        body, content_type = _encoded(envelope)
        headers = {"Content-Type": content_type, **self._signed(body)}
        if retry is not None:
            headers["X-Slack-Retry-Num"] = str(retry.num)
            headers["X-Slack-Retry-Reason"] = retry.reason
        return await self._post(headers, body)

    async def verify_url(self) -> bool:
        """Send Slack's `url_verification`; return True if the challenge came back."""
        challenge = sign(self._secret, "challenge", b"")
        payload = {"type": "url_verification", "challenge": challenge}
        answer = await self.send(Envelope(EnvelopeKind.EVENT, payload), None)
        if not isinstance(answer, Ack):
            return False
        echoed = as_object(answer.body).get("challenge", answer.body)
        return bool(echoed == challenge)

    async def check_ssl(self) -> Answer:
        """Send the unsigned `ssl_check` that Slack sends to request URLs."""
        return await self._post({"Content-Type": FORM}, b"ssl_check=1&token=legacy")

    async def resend(
        self, forgery: Forgery | str, request: SentRequest | None = None
    ) -> Received:
        """Send the newest (or the given) request again, in this variant.

        Raises:
            LookupError: nothing was sent yet.
        """
        if request is None and not self.sent:
            raise LookupError("No request was sent yet; let a person act first.")
        chosen = request or self.sent[-1]
        headers, body = self._forged(chosen, Forgery(forgery))
        async with self._session.post(
            chosen.url, data=body, headers=headers, allow_redirects=False
        ) as response:
            return Received(response.status, await response.text())

    async def _post(self, headers: dict[str, str], body: bytes) -> Answer:
        # Recorded before sending: unanswered requests count, too. Bounded, since a
        # sandbox may run for days.
        request = SentRequest(self.url, headers, body, self._clock.now())
        self.sent.append(request)
        del self.sent[:-LOG_KEPT]
        try:
            return await within_deadline(self._clock, self._exchange(request))
        except TimeoutError:
            return NoAck("timeout")
        except (aiohttp.ClientError, OSError):
            return NoAck("connection_failed")

    async def _exchange(self, request: SentRequest) -> Answer:
        async with self._session.post(
            request.url,
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
        ) as response:
            text = await response.text()
            request.status = response.status
            if response.status != HTTPStatus.OK:
                no_retry = response.headers.get("X-Slack-No-Retry") == "1"
                return NoAck(f"http_{response.status}", no_retry)
            return Ack(_decoded(text))

    def _signed(
        self, body: bytes, *, shift_s: int = 0, secret: str = ""
    ) -> dict[str, str]:
        timestamp = str(int(self._clock.now()) + shift_s)
        signature = sign(secret or self._secret, timestamp, body)
        return {TIMESTAMP: timestamp, SIGNATURE: signature}

    def _forged(
        self, request: SentRequest, forgery: Forgery
    ) -> tuple[dict[str, str], bytes]:
        headers, body = dict(request.headers), request.body
        match forgery:
            case Forgery.NONE:
                return headers, body
            case Forgery.OLD:
                return headers | self._signed(body, shift_s=-OUTSIDE_WINDOW_S), body
            case Forgery.FUTURE:
                return headers | self._signed(body, shift_s=OUTSIDE_WINDOW_S), body
            case Forgery.WRONG_SECRET:
                secret = f"not-{self._secret}"
                return headers | self._signed(body, secret=secret), body
            case Forgery.TAMPERED_BODY:
                # A trailing space changes the bytes of a document but not its meaning.
                return headers | self._signed(body), body + b" "
            case _:
                headers |= self._signed(body)
                for name, value in FORGED_HEADERS.get(forgery, {}).items():
                    headers.pop(name)
                    if value is not None:
                        headers[name] = value
                return headers, body


def _encoded(envelope: Envelope) -> tuple[bytes, str]:
    match envelope.kind:
        case EnvelopeKind.EVENT:
            return json.dumps(envelope.payload).encode(), JSON
        case EnvelopeKind.COMMAND:
            return urlencode(envelope.payload).encode(), FORM
        case EnvelopeKind.INTERACTIVE:
            form = {"payload": json.dumps(envelope.payload)}
            return urlencode(form).encode(), FORM
        case _:
            assert_never(envelope.kind)


def _decoded(text: str) -> JsonObject | str | None:
    try:
        return as_object(json.loads(text)) or text
    except ValueError:
        return text or None
