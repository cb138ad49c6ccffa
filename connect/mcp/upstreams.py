"""Connections to the MCP servers behind the gate.

A forwarded call must never be sent twice. After each failure the gate must decide if
the server may have received the call. A `Delivery` records this where bytes leave the
process: at the pipe of a local server, or at the request's first byte for a URL. The
gate distinguishes the SDK's errors for a broken connection from errors of the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
)
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import anyio
import httpx2
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT
from pydantic import TypeAdapter
from typing_extensions import override

from keyturn.gateway.background import begun
from keyturn.gateway.client.outgoing import proxy_for, trusted
from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.run_context import inside
from keyturn.gateway.protocol.strict_json import JsonObject

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_S = 60.0
"""Seconds that a server may take to start; `npx` downloads a package first."""

CALL_S = 3600.0
"""Seconds that a call may run; after them its outcome is unknown."""

_CLIENT_ERROR, _SERVER_ERROR, _NOT_FOUND = 400, 500, 404
_FORGOTTEN = {_CLIENT_ERROR, _NOT_FOUND}
"""Answers of servers to an unknown session; 400 is that of many examples."""

_RESULT = TypeAdapter[types.CallToolResult | types.InputRequiredResult](
    types.CallToolResult | types.InputRequiredResult
)


class NotSent(KeyturnError):
    """The server certainly did not receive the call."""


class NoAnswer(KeyturnError):
    """The server may have received the call, and its outcome is unknown."""


class ServerRefused(KeyturnError):
    """The server answered the call with an error."""


@dataclass(frozen=True)
class UpstreamSpec:
    """A server behind the gate: its name, and a command line or a URL.

    ``headers`` are sent to the URL, such as a token for the server.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(eq=False)
class Delivery:
    """The progress of one forwarded call.

    ``is_begun`` is True once its HTTP request exists. ``is_sent`` is True once the
    server may have received a byte of the call. ``status`` is the HTTP status of the
    response, or 0. ``is_of_session`` is True if the request named a session of the
    server.
    """

    is_begun: bool = False
    is_sent: bool = False
    is_of_session: bool = False
    status: int = 0

    async def note(self, event: str, _info: object) -> None:
        """Note an event of the HTTP client."""
        if event.endswith("send_request_headers.started"):
            self.is_sent = True


_sending: ContextVar[Delivery | None] = ContextVar("keyturn_mcp_sending", default=None)


@dataclass(eq=False)
class _Line:
    """One connection to a server: it gets ready, and is closed at its end."""

    closed: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Future[None] = field(default_factory=asyncio.Future[None])
    session: ClientSession = field(init=False)
    task: asyncio.Task[None] | None = None


class _Reading(ObjectReceiveStream[Any]):
    """The messages of a local server; records the end of the stream."""

    def __init__(self, inner: ReadStream[Any], line: _Line) -> None:
        self._inner, self._line = inner, line

    @override
    async def receive(self) -> Any:
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._line.closed.set()
            raise

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Writing(ObjectSendStream[Any]):
    """The messages to a local server; records that a call is sent."""

    def __init__(self, inner: WriteStream[Any]) -> None:
        self._inner = inner

    @override
    async def send(self, item: Any) -> None:
        delivery, message = _sending.get(), item.message
        if not isinstance(message, types.JSONRPCRequest) or delivery is None:
            await self._inner.send(item)
            return
        delivery.is_sent = True
        try:
            await self._inner.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The call did not reach the writer of the pipe.
            delivery.is_sent = False
            raise

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _OneByOne(httpx2.AsyncBaseTransport):
    """Limits the failure of an HTTP request to its call.

    If a request raises, the SDK ends its client with all running calls. So a failed
    request returns status 503 here, and the `Delivery` records what was sent.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delivery = _sending.get()
        if delivery is not None and delivery.is_begun:
            # The SDK resumes or cancels the call. A server that was restarted answers
            # this with 404, and has run the call before.
            delivery = None
        if delivery is not None:
            delivery.is_begun = True
            request.extensions["trace"] = delivery.note
            delivery.is_of_session = MCP_SESSION_ID in request.headers
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.TransportError, OSError) as error:
            logger.warning("mcp.upstream_failed error=%s", type(error).__name__)
            return httpx2.Response(503, request=request)
        if delivery is not None:
            delivery.status = response.status_code
        stream = cast("httpx2.AsyncByteStream", response.stream)
        response.stream = _Cut(stream)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Cut(httpx2.AsyncByteStream):
    """A body that ends early instead of raising; half a message is not an answer."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except (httpx2.TransportError, OSError) as error:
            logger.warning("mcp.upstream_cut error=%s", type(error).__name__)

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class Upstream:
    """One server behind the gate, connected on demand and again after a failure.

    Args:
        spec: the server's name, and its command line or URL.
        env: the environment of a local server; Keyturn's variables are removed.

    Attributes:
        changed: called when the tools of the server may have changed.
    """

    def __init__(
        self,
        spec: UpstreamSpec,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.spec, self.name = spec, spec.name
        found = os.environ if env is None else env
        # The gate's key could propose and claim calls in the agent's name.
        self._env = {k: v for k, v in found.items() if not k.startswith("KEYTURN_")}
        self.changed: Callable[[], None] = lambda: None
        self._line: _Line | None = None
        self._connecting = asyncio.Lock()

    async def listed(self, what: str) -> list[Any]:
        """Return all tools, resources, resource_templates or prompts, in its order.

        Raises:
            NotSent: it does not answer, or has none.
        """

        async def pages(session: ClientSession) -> list[Any]:
            found, cursor = list[Any](), None
            while True:
                params = types.PaginatedRequestParams(cursor=cursor)
                page = await getattr(session, f"list_{what}")(params=params)
                found += getattr(page, what)
                cursor = page.next_cursor
                if not cursor:
                    return found

        return await self.read(pages)

    async def read(self, ask: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Send requests that change nothing.

        Raises:
            NotSent: it does not answer.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._sent(ask, _FORGOTTEN)
        except KeyturnError as error:
            raise NotSent(str(error)) from error
        except TimeoutError as error:
            raise NotSent(self._sentence("did not answer", error)) from error

    async def call(
        self,
        tool: str,
        args: JsonObject,
        *,
        meta: Mapping[str, Any],
        progress: ProgressFnT | None = None,
    ) -> types.CallToolResult:
        """Send a call once and return its result.

        Args:
            tool: the server's name of the tool.
            args: the exact arguments.
            meta: the ``_meta`` of the request.
            progress: receives the server's progress: value, total, message.

        Raises:
            NotSent: the server did not receive it.
            ServerRefused: the server answered with an error.
            NoAnswer: it may have run.
        """
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(
                name=tool, arguments=args, _meta=cast("Any", dict(meta) or None)
            )
        )
        result = await self._sent(
            lambda session: session.send_request(
                request, _RESULT, CALL_S, progress_callback=progress
            ),
            {_NOT_FOUND},
        )
        if isinstance(result, types.InputRequiredResult):
            raise ServerRefused(
                f"The server {self.name!r} asks its client for input, which this gate "
                "does not pass on."
            )
        return result

    async def aclose(self) -> None:
        """Close the connection; a local server is stopped."""
        await self._drop(self._line)

    async def _sent(
        self,
        send: Callable[[ClientSession], Awaitable[T]],
        forgotten: Collection[int],
        *,
        is_again: bool = False,
    ) -> T:
        """Send requests; again over a new connection, if this one had ended unnoticed.

        ``forgotten`` are the answers of a server that does not know the session, such
        as after a restart. Only then may a connection be closed that others use.
        """
        line, delivery = await self._connected(), Delivery()
        try:
            with inside(_sending, delivery):
                return await send(line.session)
        except any_failure() as error:
            why = self._why(line, delivery, error)
            has_ended = line.closed.is_set() and isinstance(why, NotSent)
            is_forgotten = delivery.is_of_session and delivery.status in forgotten
            if is_again or not (has_ended or is_forgotten):
                raise why from error
        await self._drop(line)
        return await self._sent(send, forgotten, is_again=True)

    async def _drop(self, line: _Line | None) -> None:
        if line is not None:
            line.closed.set()
            if line.task is not None:
                if not line.ready.done():
                    line.task.cancel()  # it would wait for the server
                await asyncio.wait([line.task])

    def _why(
        self, line: _Line, delivery: Delivery, error: BaseException
    ) -> KeyturnError:
        """Return the error of a call whose request failed."""
        if not delivery.is_sent:
            return NotSent(self._sentence("could not be reached", error))
        refused = ServerRefused(self._sentence("refused the request", error))
        unknown = NoAnswer(self._sentence("did not answer", error))
        if not isinstance(error, MCPError):
            return unknown
        # The SDK itself makes errors with these codes.
        is_made_up = error.code in {CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT}
        if self.spec.command:
            return unknown if is_made_up or line.closed.is_set() else refused
        if delivery.status == _NOT_FOUND and delivery.is_of_session:
            # The server does not know the session, for example after a restart.
            return NotSent(self._sentence("has forgotten this session", error))
        if _CLIENT_ERROR <= delivery.status < _SERVER_ERROR:
            return refused
        is_cut = delivery.status != 200 or is_made_up  # noqa: PLR2004 - OK
        return unknown if is_cut else refused

    def _sentence(self, what: str, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        why = error.message if isinstance(error, MCPError) else type(error).__name__
        return f"The server {self.name!r} {what} ({why[:300]})."

    def _unconnected(self, error: BaseException) -> str:
        """Return the reason for a failed connection, with advice for people."""
        if not self.spec.command:
            what = f"did not answer at {self.spec.url!r}; check the URL and the headers"
            return self._sentence(what, error)
        program = self.spec.command[0]
        if isinstance(error, FileNotFoundError):
            return (
                f"The server {self.name!r} did not start: there is no program "
                f"{program!r}. Install it, or write its full path."
            )
        what = f"did not start; try {program!r} with its arguments in a terminal"
        return self._sentence(what, error)

    async def _connected(self) -> _Line:
        async with self._connecting:
            line = self._line
            if line is None or line.closed.is_set():
                await self._drop(line)
                line = self._line = _Line()
                line.task = begun(self._hold(line))
            try:
                # A request that stops waiting does not stop the connecting.
                async with asyncio.timeout(CONNECT_S):
                    await asyncio.shield(line.ready)
                    return line
            except any_failure() as error:
                line.closed.set()
                raise NotSent(self._unconnected(error)) from error

    async def _hold(self, line: _Line) -> None:
        """Keep one connection open until it ends, in one task."""
        try:
            async with (
                self._transport(line) as streams,
                Client(
                    nullcontext(streams),
                    cache=None,
                    message_handler=self._heard,
                    client_info=types.Implementation(name="keyturn", version="1"),
                ) as client,
            ):
                self.changed()  # another program may answer now
                line.session = client.session
                line.ready.set_result(None)
                following = begun(self._follow(client))
                await line.closed.wait()
                following.cancel()
        except any_failure() as error:
            log_failure(logger, error, "mcp.upstream_lost name=%s", self.name)
            if not line.ready.done():
                line.ready.set_exception(error)
        finally:
            line.closed.set()
            # After a cancellation the future has no result yet.
            line.ready.cancel()

    @asynccontextmanager
    async def _transport(self, line: _Line) -> AsyncGenerator[Any]:
        if self.spec.command:
            program, *args = self.spec.command
            server = StdioServerParameters(command=program, args=args, env=self._env)
            async with stdio_client(server) as (read, write):
                yield _Reading(read, line), _Writing(write)
            return
        parts = httpx2.URL(self.spec.url)
        proxy = proxy_for(parts.scheme, parts.host)
        inner = httpx2.AsyncHTTPTransport(
            verify=trusted(),
            proxy=str(proxy) if proxy else None,
            limits=httpx2.Limits(),  # each call under way has a connection
        )
        timeout = httpx2.Timeout(30.0, read=CALL_S)
        headers = dict(self.spec.headers)
        async with (
            httpx2.AsyncClient(
                transport=_OneByOne(inner), headers=headers, timeout=timeout
            ) as client,
            streamable_http_client(self.spec.url, http_client=client) as streams,
        ):
            yield streams

    async def _follow(self, client: Client) -> None:
        """Follow changes of the tools, on a server of the current protocol."""
        with suppress(any_failure(), ListenNotSupportedError):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self.changed()

    async def _heard(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed()
