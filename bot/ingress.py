"""Receive requests from Slack, by HTTP or through sockets, before Bolt sees them.

Requests by HTTP are verified: signature, age, replay, size and time limits. Bolt checks
signatures too, but answers 500 to a malformed one, runs a replayed request again, logs
the body of a forged one, and has no defence against slow clients (measured with
slack-bolt 1.30 and aiohttp 3.14). So everything is checked here first, over the raw
bytes and before Bolt parses anything. In Socket Mode a new connection opens before the
old one closes. Source of the scheme:
https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import cast

import aiohttp
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response
from slack_bolt.response import BoltResponse

from keyturn.bot.manifest import EVENTS_PATH
from keyturn.bot.web import Slack, SlackError, SlackNoResponse
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.config import SlackSettings
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.guarded_server import GuardedServer, Limits, listening
from keyturn.gateway.health import Health, not_found
from keyturn.gateway.service_settings import Address
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

RETRY_NUM = "X-Slack-Retry-Num"
"""Header of an event that Slack repeats. It is not signed, so it grants nothing."""
WINDOW_S = 300
HEADER_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 400
ANSWER_WITHIN_S = 2.6
"""Time limit for an answer; Slack waits 3 s."""

_TIMESTAMP = re.compile(r"[0-9]{10}", re.ASCII)
_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}", re.ASCII)
_SSL_CHECK = re.compile(rb"(.*&)?ssl_check=1(&.*)?", re.DOTALL)

Headers = Mapping[str, str]


def deadline() -> float:
    """Return the time limit of a delivery that arrives now, by the loop's clock."""
    return asyncio.get_running_loop().time() + ANSWER_WITHIN_S


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request that Slack signed just now, or an envelope of a socket.

    Attributes:
        body: the signed text, byte for byte; for an envelope the payload.
        headers: the request's headers; empty for an envelope.
        digest: ``sha256:<hex>`` of timestamp and signature, or of the envelope's id;
            identifies this delivery.
        is_recorded: False if the store could not rule out a replay; such a delivery
            must not decide anything.
        until_s: time limit of the answer, by the event loop's clock.
    """

    body: str | dict[str, object]
    headers: Headers
    digest: str
    is_recorded: bool = True
    until_s: float = field(default_factory=deadline, compare=False)


Handle = Callable[[Delivery], Awaitable[BoltResponse]]

Receive = Callable[[Delivery], Awaitable[BoltResponse | None]]
"""Answers a delivery once; None for a replay, see `handle_once`."""

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def signature_problem(
    secret: str, headers: Headers, body: bytes, *, now_s: float
) -> str:
    """Return why a request is not from Slack, in one word; "" if it is genuine.

    Every shape is checked before the signature is computed, and signatures are compared
    in constant time.
    """
    timestamp = headers.get("X-Slack-Request-Timestamp", "")
    signature = headers.get("X-Slack-Signature", "")
    if not _TIMESTAMP.fullmatch(timestamp):
        return "timestamp_malformed"
    # Both directions: a timestamp from the future would still be accepted after its
    # nonce is forgotten.
    if abs(now_s - int(timestamp)) > WINDOW_S:
        return "timestamp_outside_window"
    if not _SIGNATURE.fullmatch(signature):
        return "signature_malformed"
    # Over the raw bytes: decoding and encoding may change them, and with them the
    # signature.
    signed = b"v0:" + timestamp.encode("ascii") + b":" + body
    wanted = "v0=" + hmac.digest(secret.encode(), signed, "sha256").hex()
    return "" if hmac.compare_digest(wanted, signature) else "signature_wrong"


def request_digest(timestamp: str, signature: str) -> str:
    """Return the id of one signed request; a replay has the same id."""
    return "sha256:" + hashlib.sha256(f"{timestamp}:{signature}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """The bot's web server: Slack's endpoint, health and metrics.

    Attributes:
        signing_secret: empty closes the endpoint (Socket Mode).
        receive: answers each request that Slack signed, at most once.
        pages: pages for browsers, by their paths.
        health: answers other paths; None if it has a separate address.
        clock: Unix seconds, compared with Slack's timestamps. Must be the store's
            clock, which also limits how long requests are remembered. With another
            clock an old request could be inside the window again after it is forgotten.
    """

    signing_secret: str = field(repr=False)
    receive: Receive
    health: Health | None
    pages: Mapping[str, Page] = field(default_factory=dict[str, Page])
    clock: Callable[[], float] = time.time  # noqa: TID251 - the bot passes the store's

    def server(self) -> GuardedServer:
        """Return the server, with its limits; needs a running event loop."""
        limits = Limits(
            connections=MAX_CONNECTIONS,
            header_s=HEADER_TIMEOUT_S,
            body_s=BODY_TIMEOUT_S,
        )
        return GuardedServer(self._serve, limits, name="ingress")

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        match (request.method, request.path):
            # In Socket Mode there is no secret. An empty one would accept anything
            # signed with the empty key, so the path does not exist then.
            case ("POST", "/slack/events") if self.signing_secret:
                return await self._events(request)
            case ("GET", "/slack/events") if "ssl_check" in request.query:
                return web.Response()
            case ("GET", path) if path in self.pages:
                return await self.pages[path](request)
            case ("GET" | "HEAD", "/healthz"):
                return web.Response(text="ok\n")
            case _ if self.health is not None:
                return await self.health.answer(request)
            case _:
                return not_found()

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        body, headers = await request.read(), request.headers
        problem = signature_problem(
            self.signing_secret, headers, body, now_s=self.clock()
        )
        if problem:
            if _is_ssl_check(headers, body):
                return web.Response()  # Slack tests the certificate; nothing runs
            logger.warning("ingress.refused why=%s", problem)
            return web.Response(status=HTTPStatus.UNAUTHORIZED, text="Not signed.\n")
        return await to_aiohttp_response(await self._once(headers, body))

    async def _once(self, headers: Headers, body: bytes) -> BoltResponse:
        digest = request_digest(
            headers["X-Slack-Request-Timestamp"], headers["X-Slack-Signature"]
        )
        try:
            delivery = Delivery(body.decode("utf-8"), headers, digest)
        except UnicodeDecodeError:
            logger.warning("ingress.refused why=malformed request=%s", digest)
            return BoltResponse(
                status=HTTPStatus.BAD_REQUEST, body="This request cannot be read.\n"
            )
        response = await self.receive(delivery)
        if response is not None:
            return response
        # A replay is acknowledged, or Slack would send it again. Only an event that
        # Slack marks as a retry is asked for again.
        #
        # Slack repeats a request immediately when its connection broke, and within the
        # same second the signature is the same. The process that got the first one may
        # have crashed, so it is not acknowledged. The next repetition comes a minute
        # later with a new signature, and is handled once.
        if RETRY_NUM in headers:
            text = "This came before; try again later.\n"
            return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body=text)
        return BoltResponse(status=HTTPStatus.OK)


async def handle_once(
    delivery: Delivery, nonces: StoreNonces, handle: Handle
) -> BoltResponse | None:
    """Hand over a delivery, unless it was handed over before; None for a replay."""
    try:
        # Remembered before it is handled (SET NX in the store): if two copies arrive at
        # the same moment, even at two bots, only one runs. The wait for the store is as
        # long as Slack's, not longer.
        async with asyncio.timeout_at(delivery.until_s):
            is_first = await nonces.is_first(delivery.digest)
        if not is_first:
            logger.warning("ingress.replayed request=%s", delivery.digest)
            return None
    except (StoreUnavailable, TimeoutError):
        # A warning without a traceback: the store's own log has the cause.
        logger.warning("ingress.unrecorded why=store_unavailable")
        # Passed on anyway, so that the person gets an answer; `router.guarded`
        # refuses every decision of it.
        delivery = replace(delivery, is_recorded=False)
    response = await handle(delivery)
    is_kept = response.status != HTTPStatus.SERVICE_UNAVAILABLE
    if delivery.is_recorded and not is_kept:
        # Slack sends it again: the same envelope, or by HTTP immediately, and with the
        # same signature within the same second.
        with suppress(StoreUnavailable):
            await nonces.forget(delivery.digest)
    return response


def _is_ssl_check(headers: Headers, body: bytes) -> bool:
    is_signed = "X-Slack-Signature" in headers or "X-Slack-Request-Timestamp" in headers
    return not is_signed and len(body) < 1000 and bool(_SSL_CHECK.fullmatch(body))  # noqa: PLR2004 - Slack's own is 40 bytes


HTTP_PORT = 3000
"""Default port on which Slack reaches the bot by HTTP."""

_DRAIN_S = 10.0
"""Time limit at shutdown for answering the open requests."""


async def serve(opening: AsyncExitStack, ingress: Ingress, slack: SlackSettings) -> str:
    """Serve until the stack is closed; return the URL for Slack.

    Raises:
        SettingsError: the address cannot be used; the message names the fix.
    """
    at = Address(slack.host, HTTP_PORT if slack.port is None else slack.port)
    settings = "'slack.host' and 'slack.port' (KEYTURN_SLACK_PORT)"
    serving = listening(ingress.server(), at, settings, drain_s=_DRAIN_S)
    return f"{await opening.enter_async_context(serving)}{EVENTS_PATH}"


_MOST_UNSURE = 1000


class StoreNonces:
    """Remember requests in the store, for all bots of a tenant; report replays."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._cards = store.cards
        self._security = store.security
        self._keys = store.keys_of_tenant(tenant)
        self._tenant = tenant
        self._unsure = dict[str, bytes]()

    async def is_first(self, digest: str) -> bool:
        """Return whether the request is new; raises `StoreUnavailable`.

        If this raises or is cancelled, the same request is still new at its next
        delivery. It was not handled, although the store may have recorded it.
        """
        mine = self._unsure.pop(digest, None) or secrets.token_bytes(8)
        try:
            is_new = await self._cards.is_first(self._keys, digest, mine)
        except (StoreUnavailable, asyncio.CancelledError):
            self._unsure[digest] = mine
            if len(self._unsure) > _MOST_UNSURE:
                del self._unsure[next(iter(self._unsure))]
            raise
        if not is_new:
            replayed = SecurityEvent(
                kind=SecurityKind.REQUEST_REPLAYED,
                tenant=self._tenant,
                about="request",
                evidence=digest,
            )
            await self._security.report(self._keys, replayed)
        return is_new

    async def forget(self, digest: str) -> None:
        """Treat a request as new again; raises `StoreUnavailable`."""
        await self._cards.forget(self._keys, digest)


PING_S = 5.0
"""Time until an abrupt loss is noticed, and pause after a failed attempt."""

CONNECT_S = 10.0
"""Time limit for opening a connection."""


class Sockets:
    """Several connections of one app; Slack delivers each payload to any one of them.

    An address opens one connection within half a minute, so each attempt asks for
    another one. (The SDK's client tries an expired address for ever.)

    Args:
        slack: returns the addresses, and has the session that opens them.
        app_token: ``xapp-…``.
        nonces: remembers envelopes.
        handle: receives each envelope, at most once.
    """

    def __init__(
        self, slack: Slack, app_token: str, *, nonces: StoreNonces, handle: Handle
    ) -> None:
        self._slack, self._app_token = slack, app_token
        self._nonces, self._handle = nonces, handle
        self._open = set[aiohttp.ClientWebSocketResponse]()
        self._answering = set[asyncio.Task[None]]()
        self._serving = set[asyncio.Task[None]]()

    async def open(self, count: int) -> None:
        """Open connections until ``count`` are open.

        Raises:
            SlackError: Slack returned no address, or its server does not answer.
        """
        while len(self._open) < count:
            await self._connect()

    async def close(self) -> None:
        """Answer the envelopes received so far, then close all connections."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=_DRAIN_S)
        self._open.clear()  # none of them is replaced now
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def connected(self) -> int:
        """Return the number of connections that live."""
        return sum(not one.closed for one in self._open)

    async def _connect(self) -> None:
        url = await self._slack.open_socket(self._app_token)
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await self._slack.session.ws_connect(url, heartbeat=PING_S)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # The error's text would contain the address, which grants access to anyone.
            problem = f"no connection ({type(error).__name__})"
            raise SlackNoResponse("apps.connections.open", problem) from None
        self._open.add(socket)
        _start(self._serving, self._serve(socket))

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._receive(socket, json.loads(message.data))
        except any_failure() as error:
            log_failure(logger, error, "socket.failed")
        finally:
            self._replace(socket)
            await socket.close()

    def _receive(
        self, socket: aiohttp.ClientWebSocketResponse, envelope: dict[str, object]
    ) -> None:
        if envelope.get("type") == "disconnect":
            # Slack ends this connection soon. It is read until then.
            self._replace(socket)
        elif "envelope_id" in envelope:
            _start(self._answering, self._answer(socket, envelope))

    def _replace(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        if socket in self._open:
            self._open.discard(socket)
            _start(self._serving, self._open_another())

    async def _open_another(self) -> None:
        """Open a connection in place of one that ends, however long Slack is away."""
        while True:
            # Before the first attempt, too: with ten connections open, Slack ends
            # another one as soon as it opens.
            await asyncio.sleep(PING_S)
            try:
                await self._connect()
            except SlackError as error:
                logger.warning("socket.not_opened why=%s", error)
            else:
                return

    async def _answer(
        self, socket: aiohttp.ClientWebSocketResponse, envelope: dict[str, object]
    ) -> None:
        envelope_id, payload = envelope["envelope_id"], envelope.get("payload")
        name = f"envelope:{envelope_id}".encode()
        digest = f"sha256:{hashlib.sha256(name).hexdigest()}"
        delivery = Delivery(cast("dict[str, object]", payload), {}, digest)
        try:
            response = await handle_once(delivery, self._nonces, self._handle)
            # A replay was handled before, but its acknowledgement was lost.
            response = response or BoltResponse(status=HTTPStatus.OK)
            # Any other status acknowledges nothing: Slack may send the envelope again.
            if response.status == HTTPStatus.OK:
                reply = json.loads(response.body) if response.body else None
                answer = {"envelope_id": envelope_id, "payload": reply}
                await socket.send_json({k: v for k, v in answer.items() if v})
        except ConnectionError:
            logger.warning("socket.lost request=%s", digest)
        except any_failure() as error:
            log_failure(logger, error, "bot.envelope_failed")


def _start(
    running: set[asyncio.Task[None]], work: Coroutine[object, object, None]
) -> None:
    """Start a task; the event loop keeps only weak references to tasks."""
    task = asyncio.create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
