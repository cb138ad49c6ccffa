"""Deliver requests to the app over HTTP, signed as Slack signs them."""

import hashlib
import hmac
import json
from dataclasses import dataclass
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
LOG_KEPT = 1_000


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

    def _signed(self, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._clock.now()))
        signature = sign(self._secret, timestamp, body)
        return {TIMESTAMP: timestamp, SIGNATURE: signature}


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
