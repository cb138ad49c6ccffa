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
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Protocol, cast

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from slack_bolt.adapter.aiohttp import to_aiohttp_response
from slack_bolt.adapter.socket_mode.async_internals import send_async_response
from slack_bolt.response import BoltResponse
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest

from keyturn.bot.manifest import EVENTS_PATH
from keyturn.bot.web import Slack, SlackNoResponse
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.guarded_server import GuardedServer, Limits, listen
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

Readiness = Callable[[], Awaitable[list[str]]]
MetricsText = Callable[[], Awaitable[bytes]]
Facts = Callable[[], Awaitable[Mapping[str, object]]]


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
        nonces: remembers requests.
        handle: receives each request that Slack signed, at most once.
        ready: returns the problems that keep the bot from working; empty if it works.
        facts: returns more facts for operators.
        metrics: returns the text for Prometheus.
        shows_health: this server answers ``/readyz`` and ``/metrics``; False if they
            have a separate address.
        clock: Unix seconds, compared with Slack's timestamps. Must be the store's
            clock, which also limits how long requests are remembered. With another
            clock an old request could be inside the window again after it is forgotten.
    """

    signing_secret: str = field(repr=False)
    nonces: StoreNonces
    handle: Handle
    ready: Readiness
    facts: Facts
    metrics: MetricsText
    shows_health: bool = True
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
            case ("GET", "/readyz") if self.shows_health:
                return await self._readiness()
            case ("GET", "/metrics") if self.shows_health:
                return await self._metrics_text()
            # In Socket Mode there is no secret. An empty one would accept anything
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
            # A failed scrape is visible; an invented zero would not be.
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
                return web.Response()  # Slack tests the certificate; nothing runs
            logger.warning("ingress.refused why=%s%s", problem, self._age_of(headers))
            return web.Response(status=HTTPStatus.UNAUTHORIZED, text="Not signed.\n")
        return await to_aiohttp_response(await self._once(headers, body))

    def _age_of(self, headers: Headers) -> str:
        # If every request has the same large age, the store's clock is wrong.
        timestamp = headers.get("X-Slack-Request-Timestamp", "")
        if not _TIMESTAMP.fullmatch(timestamp):
            return ""
        return f" age_s={self.clock() - int(timestamp):.0f} by=the_clock_of_the_store"

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
        response = await handle_once(delivery, self.nonces, self.handle)
        # A replay is acknowledged, or Slack would send it again. Only an event that
        # Slack marks as a retry is asked for again.
        if response is None:
            is_event = RETRY_NUM in headers
            return _again_later() if is_event else BoltResponse(status=HTTPStatus.OK)
        return response


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


def _again_later() -> BoltResponse:
    """Ask Slack to repeat an event once more.

    Slack repeats a request immediately when its connection broke, and within the same
    second the signature is the same. The process that got the first one may have
    crashed, so it is not acknowledged. The next repetition comes a minute later with a
    new signature, and is handled once.
    """
    return BoltResponse(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        body="This came before; try again later.\n",
    )


def _is_ssl_check(headers: Headers, body: bytes) -> bool:
    is_signed = "X-Slack-Signature" in headers or "X-Slack-Request-Timestamp" in headers
    return not is_signed and len(body) < 1000 and bool(_SSL_CHECK.fullmatch(body))  # noqa: PLR2004 - Slack's own is 40 bytes


HTTP_PORT = 3000
"""Default port on which Slack reaches the bot by HTTP."""

_DRAIN_S = 10.0


async def serve(
    opening: AsyncExitStack, ingress: Ingress, *, host: str, port: int
) -> str:
    """Serve until the stack is closed; return the URL for Slack.

    Args:
        opening: closes the server.
        ingress: answers the requests.
        host: interface to listen on.
        port: 0 takes any free one.

    Raises:
        SettingsError: the address cannot be used; the message names the fix.
    """
    runner = web.ServerRunner(ingress.server(), shutdown_timeout=_DRAIN_S)
    await runner.setup()
    opening.push_async_callback(runner.cleanup)
    names = "'slack.host' and 'slack.port' (KEYTURN_SLACK_PORT)"
    return url_of(*await listen(runner, host, port, names))


def url_of(host: str, port: int) -> str:
    """Return the URL at which Slack reaches an address."""
    # IPv6 needs brackets in a URL (RFC 3986, section 3.2.2).
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{EVENTS_PATH}"


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
"""Time until an abrupt loss is noticed; the SDK's default is 10 s."""

CONNECT_S = 10.0
"""Time limit for opening a connection."""

_ANSWERED_S = 10.0
"""Time limit at shutdown for answering the open envelopes."""

_IN_A_ROW = 4
"""Connections that may open one right after the other."""


class _Session(Protocol):
    """The parts of a client session that the SDK uses, with types."""

    @property
    def closed(self) -> bool: ...
    async def close(self) -> None: ...
    async def ws_connect(self, url: str, **options: object) -> object: ...


class _Socket(Protocol):
    """The parts of the SDK's connection used here, with types (its own are partial)."""

    socket_mode_request_listeners: list[object]
    wss_uri: str | None
    aiohttp_client_session: _Session

    async def connect(self) -> None: ...
    async def close(self) -> None: ...
    async def is_connected(self) -> bool: ...


class _Request(Protocol):
    """The parts of the SDK's request used here, with types."""

    envelope_id: str
    payload: dict[str, object]


class _Dialer:
    """Opens a connection for the SDK; each address is tried once.

    The SDK retries one address until it gets an answer, but Slack's addresses expire in
    less than a minute: after a longer outage it would never be connected again.
    """

    def __init__(self, client: _Socket) -> None:
        self._client = client
        self._unused = client.aiohttp_client_session
        self._session = cast("_Session", outgoing())
        self._opened_at = deque[float](maxlen=_IN_A_ROW)

    @property
    def closed(self) -> bool:
        """Return whether the dialer is closed."""
        return self._session.closed

    async def close(self) -> None:
        """Close the dialer and its sessions."""
        await self._unused.close()
        await self._session.close()

    async def ws_connect(self, url: str, **options: object) -> object:
        """Open a connection to an address; wait first if many were opened in a row."""
        self._client.wss_uri = None  # so that the SDK asks Slack for another one
        # With ten connections open, Slack ends another one as soon as it opens. A few
        # in a row are normal: the SDK opens one for each `disconnect`.
        loop = asyncio.get_running_loop()
        if len(self._opened_at) == _IN_A_ROW:
            free_at = self._opened_at[0] + _IN_A_ROW * PING_S
            await asyncio.sleep(max(0.0, free_at - loop.time()))
        self._opened_at.append(loop.time())
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._session.ws_connect(url, **options)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # The error's text would contain the address, which grants access to anyone.
            raise ConnectionError(type(error).__name__) from None


class Sockets:
    """Several connections of one app; Slack delivers each payload to any one of them.

    Args:
        slack: returns the addresses.
        app_token: ``xapp-…``.
        nonces: remembers envelopes.
        handle: receives each envelope, at most once.
    """

    def __init__(
        self, slack: Slack, app_token: str, *, nonces: StoreNonces, handle: Handle
    ) -> None:
        self._slack = slack
        self._app_token = app_token
        self._nonces = nonces
        self._handle = handle
        self._clients: list[_Socket] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, count: int) -> None:
        """Open connections until ``count`` are open.

        Raises:
            SlackError: Slack returned no address, or its server does not answer.
        """
        while len(self._clients) < count:
            url = await self._slack.open_socket(self._app_token)
            client = cast("_Socket", self._client())
            client.aiohttp_client_session = _Dialer(client)
            client.wss_uri = url
            client.socket_mode_request_listeners.append(self._receive)
            try:
                # The SDK retries by itself, without end.
                async with asyncio.timeout(CONNECT_S):
                    await client.connect()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                await client.close()
                problem = f"no connection ({type(error).__name__})"
                raise SlackNoResponse("apps.connections.open", problem) from error
            self._clients.append(client)

    def _client(self) -> SocketModeClient:
        return SocketModeClient(
            app_token=self._app_token,
            web_client=self._slack.client,
            logger=logging.getLogger("slack_sdk.socket_mode.aiohttp"),
            ping_interval=PING_S,
        )

    async def close(self) -> None:
        """Answer the envelopes received so far, then close all connections."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=_ANSWERED_S)
        for client in self._clients:
            await client.close()
        self._clients.clear()

    async def connected(self) -> int:
        """Count the connections that live."""
        return sum([await client.is_connected() for client in self._clients])

    async def _receive(
        self, client: AsyncBaseSocketModeClient, received: SocketModeRequest
    ) -> None:
        # The SDK keeps no reference to the task that waits for this.
        task = asyncio.create_task(self._answer(client, received))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        await task

    async def _answer(
        self, client: AsyncBaseSocketModeClient, received: SocketModeRequest
    ) -> None:
        request = cast("_Request", received)
        envelope_id = request.envelope_id
        name = f"envelope:{envelope_id}".encode()
        digest = f"sha256:{hashlib.sha256(name).hexdigest()}"
        delivery = Delivery(request.payload, {}, digest)
        try:
            response = await handle_once(delivery, self._nonces, self._handle)
        except any_failure() as error:
            # The client would receive nothing more after a library panic. Without an
            # acknowledgement Slack sends the envelope again.
            log_failure(logger, error, "bot.envelope_failed")
            return
        # A replay was handled before, but its acknowledgement was lost. Any status
        # other than 200 acknowledges nothing: Slack may send the envelope again.
        response = response or BoltResponse(status=HTTPStatus.OK)
        await send_async_response(client, received, response, 0)
