"""Verify Slack's requests before Bolt: signature, age, replay, size and time limits.

Bolt checks signatures too, but answers 500 to a malformed one, runs a replayed request
again, logs the body of a forged one, and has no defence against slow clients (measured
with slack-bolt 1.30 and aiohttp 3.14). So everything is checked here first, over the
raw bytes and before anything is parsed; for what goes on to Bolt (`dispatch`), its own
check then runs as a second one.
Source of the scheme:
https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from twokey.bot.acknowledgement import Acknowledgement
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.guarded_server import GuardedServer, Limits
from twokey.gateway.trust.keyed_hash import keyed_hash

logger = logging.getLogger(__name__)

EVENTS_PATH = "/slack/events"
RETRY_NUM = "X-Slack-Retry-Num"
"""Header of an event that Slack repeats. It is not signed, so it grants nothing."""
WINDOW_S = 300
HEADER_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 400
ANSWER_WITHIN_S = 2.6
"""How long an answer may take; Slack waits 3 s."""

_TIMESTAMP = re.compile(r"[0-9]{10}", re.ASCII)
_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}", re.ASCII)
_SSL_CHECK = re.compile(rb"(.*&)?ssl_check=1(&.*)?", re.DOTALL)

Headers = Mapping[str, str]


@dataclass(slots=True)
class Progress:
    """What is known of a delivery since somebody looked at it.

    Attributes:
        document: the text of an interaction's JSON, once it was decoded.
        payload: what it says, once it was read.
        until_s: until when it has to be answered, by the clock of the loop; 0: nobody
            has begun.
    """

    document: bytes | None = None
    payload: object = None
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """What Slack sent: a request that it signed just now, or an envelope of a socket.

    Attributes:
        body: exactly as it was signed, as text; of an envelope the payload.
        headers: as they came; an envelope has none.
        digest: of timestamp and signature, or of the envelope's id, ``sha256:<hex>``:
            names this one delivery.
        is_recorded: False when the store could not say whether it is a replay; then
            nothing may be decided by it.
        progress: shared by all who try to answer it.
    """

    body: str | dict[str, object]
    headers: Headers
    digest: str
    is_recorded: bool = True
    progress: Progress = field(default_factory=Progress, repr=False, compare=False)

    @property
    def until_s(self) -> float:
        """Return until when it has to be answered, by the clock of the loop.

        The same for each who tries: Slack waits three seconds for all of them.
        """
        if not self.progress.until_s:
            now_s = asyncio.get_running_loop().time()
            self.progress.until_s = now_s + ANSWER_WITHIN_S
        return self.progress.until_s


@dataclass(frozen=True, slots=True)
class Answer:
    """What Slack gets back."""

    status: int = HTTPStatus.OK
    body: str = ""
    content_type: str = "text/plain"


ACKNOWLEDGED = Answer()
"""What nearly every click is answered with."""


class Nonces(Protocol):
    """Remember which requests were seen."""

    async def is_first(self, digest: str) -> bool:
        """Return whether this is new; raises `StoreUnavailable`."""
        ...

    async def forget(self, digest: str) -> None:
        """Let one be new again; raises `StoreUnavailable`."""
        ...


Handle = Callable[[Delivery], Awaitable[Answer]]

AtOnce = Callable[[Delivery], Awaitable[Answer | None]]
"""Handles a delivery in one step with remembering it; None: nothing was done."""


async def nothing_at_once(_delivery: Delivery) -> Answer | None:
    """Leave each delivery to be remembered first."""
    return None


Readiness = Callable[[], Awaitable[list[str]]]
MetricsText = Callable[[], Awaitable[bytes]]
Facts = Callable[[], Awaitable[Mapping[str, object]]]


def signature_problem(
    secret: str, headers: Headers, body: bytes, *, now_s: float
) -> str:
    """Return why a request is not Slack's, in one word; "" when it is.

    Every shape is checked before the signature is computed, and the signatures are
    compared in constant time.
    """
    timestamp = headers.get("X-Slack-Request-Timestamp", "")
    signature = headers.get("X-Slack-Signature", "")
    if not _TIMESTAMP.fullmatch(timestamp):
        return "timestamp_malformed"
    # Both directions: a time stamp from the future would still be accepted after its
    # nonce is forgotten.
    if abs(now_s - int(timestamp)) > WINDOW_S:
        return "timestamp_outside_window"
    if not _SIGNATURE.fullmatch(signature):
        return "signature_malformed"
    # Over the raw bytes: decoding and encoding again may change them, and the signature
    # with them.
    signed = b"v0:" + timestamp.encode("ascii") + b":" + body
    wanted = "v0=" + keyed_hash(secret.encode())(signed).hex()
    return "" if hmac.compare_digest(wanted, signature) else "signature_wrong"


def request_digest(timestamp: str, signature: str) -> str:
    """Return the name of one signed request; a replay has the same."""
    return "sha256:" + hashlib.sha256(f"{timestamp}:{signature}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """The bot's web server: Slack's endpoint, health and metrics.

    Attributes:
        signing_secret: empty closes the endpoint (Socket Mode).
        nonces: where requests are remembered.
        handle: gets what Slack signed, at most once each.
        at_once: gets it before it is remembered.
        ready: returns what keeps the bot from working; empty when it works.
        facts: returns what else an operator should see there.
        metrics: returns what Prometheus reads.
        clock: Unix seconds; what Slack's timestamps are compared with. The store's, by
            which requests are remembered: by another one, an old request could be
            inside the window again when it is forgotten.
    """

    signing_secret: str = field(repr=False)
    nonces: Nonces
    handle: Handle
    ready: Readiness
    facts: Facts
    metrics: MetricsText
    at_once: AtOnce = nothing_at_once
    clock: Callable[[], float] = time.time  # noqa: TID251 - the bot passes the store's

    def server(self) -> web.Server:
        """Return the server, with its limits; needs a running event loop."""
        limits = Limits(
            connections=MAX_CONNECTIONS,
            header_s=HEADER_TIMEOUT_S,
            body_s=BODY_TIMEOUT_S,
        )
        return GuardedServer(self._serve, limits, name="ingress")

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        match (request.method, request.path):
            case ("GET", "/healthz"):
                return web.Response(text="ok\n")
            case ("GET", "/readyz"):
                return await self._readiness()
            case ("GET", "/metrics"):
                return await self._metrics_text()
            # In Socket Mode there is no secret. An empty one would accept whatever is
            # signed with the empty key, so the path does not exist then.
            case ("POST", "/slack/events") if self.signing_secret:
                return await self._events(request)
            case ("GET", "/slack/events") if "ssl_check" in request.query:
                return web.Response()
            case _:
                return web.Response(status=HTTPStatus.NOT_FOUND, text="Not found.\n")

    async def _readiness(self) -> web.Response:
        problems, facts = await self.ready(), await self.facts()
        if not problems:
            return web.json_response({"ready": True, **facts})
        body = {"ready": False, "problems": problems, **facts}
        return web.json_response(body, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics_text(self) -> web.Response:
        try:
            text = await self.metrics()
        except StoreUnavailable:
            # A scrape that failed shows as such; a made-up zero would not.
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return web.Response(status=status, text="The store does not answer.\n")
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        body, headers = await request.read(), request.headers
        problem = signature_problem(
            self.signing_secret, headers, body, now_s=self.clock()
        )
        if problem:
            if _is_ssl_check(headers, body):
                return web.Response()  # Slack tries the certificate; nothing runs
            logger.warning("ingress.refused why=%s%s", problem, self._age_of(headers))
            return web.Response(status=HTTPStatus.UNAUTHORIZED, text="Not signed.\n")
        answer = await self._once(headers, body)
        if answer is ACKNOWLEDGED:
            return Acknowledgement(self.clock())
        return web.Response(
            status=answer.status, text=answer.body, content_type=answer.content_type
        )

    def _age_of(self, headers: Headers) -> str:
        # Of all requests at once it says that the store's clock is not Slack's.
        timestamp = headers.get("X-Slack-Request-Timestamp", "")
        if not _TIMESTAMP.fullmatch(timestamp):
            return ""
        return f" age_s={self.clock() - int(timestamp):.0f} by=the_clock_of_the_store"

    async def _once(self, headers: Headers, body: bytes) -> Answer:
        digest = request_digest(
            headers["X-Slack-Request-Timestamp"], headers["X-Slack-Signature"]
        )
        try:
            delivery = Delivery(body.decode("utf-8"), headers, digest)
            answer = await handle_once(
                delivery, self.nonces, self.handle, at_once=self.at_once
            )
        except (UnicodeDecodeError, json.JSONDecodeError):
            logger.warning("ingress.refused why=malformed request=%s", digest)
            return Answer(HTTPStatus.BAD_REQUEST, "This request cannot be read.\n")
        # A replay is acknowledged, or Slack would send it again; only an event that
        # Slack marks as a retry gets another chance.
        if answer is None:
            return _again_later() if RETRY_NUM in headers else ACKNOWLEDGED
        return answer


async def handle_once(
    delivery: Delivery,
    nonces: Nonces,
    handle: Handle,
    *,
    at_once: AtOnce = nothing_at_once,
) -> Answer | None:
    """Hand over a delivery, unless it was handed over before; None for a replay."""
    # Whatever that does remembers the delivery in the step in which it does it.
    answer = await at_once(delivery)
    if answer is not None:
        return answer
    try:
        # Remembered before it is handled (SET NX in the store): of two copies that
        # arrive at the same moment, also at two bots, only one runs.
        # A store that answers nothing is waited for no longer than Slack waits.
        async with asyncio.timeout_at(delivery.until_s):
            is_first = await nonces.is_first(delivery.digest)
        if not is_first:
            logger.warning("ingress.replayed request=%s", delivery.digest)
            return None
    except (StoreUnavailable, TimeoutError):
        # A warning without a traceback: the store's own log has the cause.
        logger.warning("ingress.unrecorded why=store_unavailable")
        # Passed on all the same, so that the person gets an answer; `router._guarded`
        # lets it decide nothing.
        delivery = replace(delivery, is_recorded=False)
    answer = await handle(delivery)
    is_kept = answer.status != HTTPStatus.SERVICE_UNAVAILABLE
    if delivery.is_recorded and not is_kept:
        # Slack sends it again: the same envelope, or by HTTP at once, and within the
        # same second that is signed alike.
        with suppress(StoreUnavailable):
            await nonces.forget(delivery.digest)
    return answer


def _again_later() -> Answer:
    """Ask Slack to repeat an event once more.

    Slack repeats a request at once when its connection broke, and within the same
    second the signature is the same. The process that got the first one may have
    crashed, so this is no acknowledgement. The next repetition comes a minute later
    with its own signature, and is handled once.
    """
    return Answer(
        HTTPStatus.SERVICE_UNAVAILABLE, "This came before; try again later.\n"
    )


def _is_ssl_check(headers: Headers, body: bytes) -> bool:
    is_signed = "X-Slack-Signature" in headers or "X-Slack-Request-Timestamp" in headers
    return not is_signed and len(body) < 1000 and bool(_SSL_CHECK.fullmatch(body))  # noqa: PLR2004 - Slack's own is 40 bytes
