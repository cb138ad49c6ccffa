"""HTTP server that incomplete requests cannot block: timeouts, connection limit."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from aiohttp import hdrs, web

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.service_settings import Address

logger = logging.getLogger(__name__)

_UNREAD_BYTES = 32 * 1024

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
ErrorAnswer = Callable[[int, str], web.Response]
"""Returns the answer to an unreadable request, by its status and a text."""

Admit = Callable[[web.BaseRequest], Awaitable[web.StreamResponse | int]]
"""Decides by a request's header, before its body is read: the largest body in bytes, 0
for none, or a refusal.
"""


@dataclass(frozen=True)
class Limits:
    """Limits of one server.

    Attributes:
        connections: most open connections.
        header_s: time limit for a request's header.
        body_s: time limit for its body.
        body_bytes: longest body.
    """

    connections: int = 400
    header_s: float = 10.0
    body_s: float = 10.0
    body_bytes: int = 1024 * 1024


def _plain(status: int, _: str) -> web.Response:
    return web.Response(status=status)


class GuardedServer(web.Server):
    """HTTP server with a timeout for incomplete requests and a connection limit.

    At the limit, a new connection replaces the one that has been incomplete longest, so
    idle connections do not block clients. A complete request is always answered.

    A body that is too long is refused (413): before it is read if its header declares
    the length. Compressed bodies are never decompressed.

    Args:
        handler: answers requests.
        limits: limits of the server.
        name: of the server, in its log.
        error_answer: creates the answers to unreadable requests.
        admit: decides before a body is read; None: every body is read.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        *,
        name: str,
        error_answer: ErrorAnswer | None = None,
        admit: Admit | None = None,
    ) -> None:
        super().__init__(
            self._received,
            request_factory=self._request,
            access_log=None,
            # A small compressed body may expand to gigabytes; compression is optional.
            auto_decompress=False,
            # Above the 60 s after which usual proxies drop an idle connection, so that
            # the proxy closes it first and sends no request into a closing connection.
            keepalive_timeout=75.0,
            lingering_time=1.0,
            # A connection buffers up to twice this of an unread body.
            read_bufsize=_UNREAD_BYTES,
        )
        self._handler = handler
        self._limits = limits
        self._name = name
        self._admit = admit
        self.error_answer = error_answer
        # Connections without a complete request, oldest first, each with the timer that
        # closes it.
        self._waiting: dict[web.RequestHandler, asyncio.TimerHandle | None] = {}
        # Connections in the middle of a body.
        self._reading = set[web.RequestHandler]()

    def __call__(self) -> web.RequestHandler:
        """Return the handler of one connection."""
        return _Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(
        self, handler: web.RequestHandler, transport: asyncio.Transport
    ) -> None:
        """Make room at the limit, and start the timer for the first header."""
        super().connection_made(handler, transport)
        # Only reached if every connection has sent a whole request: those are answered,
        # and the new one is refused.
        if len(self.connections) > self._limits.connections and not self._made_room():
            logger.warning("%s.refused why=too_many_requests", self._name)
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        # `abort` and not `close`: closing waits until buffers are flushed, which a
        # client that does not read can delay for ever.
        self._waiting[handler] = loop.call_later(self._limits.header_s, transport.abort)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Cancel the timer."""
        super().connection_lost(handler, exc)
        self._stop_clock(handler)
        self._waiting.pop(handler, None)

    def pre_shutdown(self) -> None:
        """Close connections; requests in progress are answered.

        aiohttp drops the rest of a body, so it would wait in vain for one that is being
        read.
        """
        for connection in [*self._reading]:
            logger.warning("%s.closed why=stopping", self._name)
            if connection.transport is not None:
                connection.transport.abort()
        super().pre_shutdown()

    async def _received(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request after its header and its body have arrived."""
        connection = request.protocol
        self._stop_clock(connection)
        try:
            return await self._answered(request)
        finally:
            # None: the client has disconnected. It must not be listed again, because
            # `connection_lost` ran already.
            if connection.transport is not None:
                self._waiting[connection] = None

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.content.is_eof():
            self._waiting.pop(request.protocol, None)
        else:
            self._reading.add(request.protocol)
        try:
            refused = await self._refused_or_read(request)
        finally:
            self._reading.discard(request.protocol)
        if refused is not None:
            return refused
        self._waiting.pop(request.protocol, None)
        response = await self._handler(request)
        if hdrs.UPGRADE in request.headers:
            # The server has no other protocol. The parser passed on the data after this
            # request for the other protocol, so requests in it are never answered.
            response.force_close()
        return response

    async def _refused_or_read(
        self, request: web.BaseRequest
    ) -> web.StreamResponse | None:
        """Read the body of a request, if it may have one; return a refusal, if any."""
        most = self._limits.body_bytes
        if self._admit is not None:
            admitted = await self._admit(request)
            if not isinstance(admitted, int):
                return admitted
            most = min(most, admitted)
        if not most:
            return None
        if (request.content_length or 0) > most:
            return self._closing(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        expects = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        if expects and request.transport is not None and not request.content.is_eof():
            # Such a client waits for this, some for seconds (RFC 9110, section 10.1.1).
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limits.body_s):
                await request.read()
        except TimeoutError:
            logger.warning("%s.refused why=body_slow", self._name)
            return self._closing(HTTPStatus.REQUEST_TIMEOUT)
        except web.HTTPRequestEntityTooLarge:
            return self._closing(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return None

    def _made_room(self) -> bool:
        for oldest in self._waiting:
            logger.warning("%s.closed why=too_many_connections", self._name)
            self._stop_clock(oldest)
            del self._waiting[oldest]
            if oldest.transport is not None:
                oldest.transport.abort()
            return True
        return False

    def _stop_clock(self, handler: web.RequestHandler) -> None:
        timer = self._waiting.get(handler)
        if timer is not None:
            timer.cancel()

    def _request(self, *parts: Any) -> web.BaseRequest:  # noqa: ANN401 - as aiohttp passes them
        most = self._limits.body_bytes
        request: Any = web.BaseRequest
        return cast(
            "web.BaseRequest", request(*parts, self._loop, client_max_size=most)
        )

    def _closing(self, status: HTTPStatus) -> web.Response:
        answer = self.error_answer or _plain
        response = answer(status, status.phrase)
        response.force_close()
        return response


@asynccontextmanager
async def listening(
    server: GuardedServer,
    address: Address,
    settings: str,
    *,
    drain_s: float = 1.0,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[str]:
    """Listen on an address while the block runs; yield its URL.

    Args:
        server: the server.
        address: port 0 is any free one.
        settings: the settings that name the address, for an error.
        drain_s: how long open requests may take at the end.
        tls: certificate and key.

    Raises:
        SettingsError: the address cannot be used; names ``settings`` to change.
    """
    runner = web.ServerRunner(server, shutdown_timeout=drain_s)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, *address, ssl_context=tls).start()
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "it is no host name"
            raise SettingsError(
                f"The address {address.host}:{address.port} cannot be used "
                f"({why}). Stop the program that listens there, or change "
                f"{settings}."
            ) from error
        at = Address(*runner.addresses[0][:2])
        yield f"{'https' if tls else 'http'}://{at.url_host}"
    finally:
        await runner.cleanup()


class _Connection(web.RequestHandler):
    """Answers unreadable requests with its server's `error_answer`."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002 - its text quotes the request
        message: str | None = None,  # noqa: ARG002 - likewise
    ) -> web.StreamResponse:
        """Return the answer to a request that cannot be read, and close.

        Raises:
            ConnectionError: the client has disconnected, or the answer was begun.
        """
        manager = self._manager
        if not isinstance(manager, GuardedServer):
            # None: the client disconnected in the middle of its request.
            raise ConnectionError("The connection is lost.")
        if request.writer.output_size > 0:
            raise ConnectionError("The answer was begun already.")
        answer = manager.error_answer or _plain
        response = answer(status, HTTPStatus(status).phrase)
        response.force_close()
        return response
