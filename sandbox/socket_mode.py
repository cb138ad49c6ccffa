"""Deliver requests to the app over the WebSockets of Socket Mode."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from keyturn.sandbox.api_errors import ApiError
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

CONNECTIONS = 10
"""https://docs.slack.dev/apis/events-api/using-socket-mode#connections"""
TICKET_LIFE_S = 30.0
HOST = "keyturn-sandbox"


@dataclass(eq=False, slots=True)
class Connection:
    """One open socket of the app, and the envelopes it has not acknowledged."""

    socket: web.WebSocketResponse
    request: web.Request
    waiting: dict[str, asyncio.Future[object]] = field(
        default_factory=dict[str, "asyncio.Future[object]"]
    )
    closing: bool = False

    def take_ack(self, text: str) -> None:
        """Complete the acknowledged delivery; ignore other messages."""
        try:
            message = as_object(json.loads(text))
        except ValueError:
            return
        future = self.waiting.pop(str(message.get("envelope_id")), None)
        # Already done if its time has just run out.
        if future is not None and not future.done():
            future.set_result(message.get("payload"))

    def fail_pending(self) -> None:
        """Fail the deliveries that wait for an acknowledgement on this socket."""
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("socket closed"))
        self.waiting.clear()


class Sockets:
    """Keep the app's sockets, and send each envelope to one of them.

    Attributes:
        connections: the open ones.
        are_refused: whether new sockets are refused with status 503.
    """

    def __init__(
        self, clock: Clock, app_id: str, on_change: Callable[[], None]
    ) -> None:
        self.connections: list[Connection] = []
        self.are_refused = False
        self._on_change = on_change
        self._clock = clock
        self._app_id = app_id
        self._tickets: dict[str, float] = {}
        self._turn = 0

    @property
    def connected(self) -> bool:
        """Return True if a usable socket is open."""
        return any(self._usable())

    def ticket(self) -> str:
        """Return a ticket that opens one socket within thirty seconds."""
        ticket = secrets.token_urlsafe(16)
        self._tickets[ticket] = self._clock.now()
        return ticket

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one socket of the app until either side closes it.

        Raises:
            ApiError: `invalid_ticket` for a ticket that is unknown, used or old.
        """
        if self.are_refused:
            raise web.HTTPServiceUnavailable
        # Popped: a ticket opens only one socket.
        issued = self._tickets.pop(request.query.get("ticket", ""), None)
        if issued is None or self._clock.now() - issued > TICKET_LIFE_S:
            raise ApiError("invalid_ticket")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        connection = Connection(socket, request)
        if len(self.connections) >= CONNECTIONS:
            await _send_disconnect(connection, "too_many_websockets")
            await socket.close()
            return socket
        self.connections.append(connection)
        try:
            await socket.send_json(self._hello())
            self._on_change()
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    connection.take_ack(str(message.data))
        finally:
            self.connections.remove(connection)
            connection.fail_pending()
            self._on_change()
        return socket

    async def send(self, envelope: Envelope, retry: Retry | None) -> Answer:
        """Send an envelope over one socket; see `Transport.send`."""
        usable = list(self._usable())
        if not usable:
            return NoAck("not_connected")
        self._turn += 1
        # In turns: Slack sends an envelope to any of the sockets, so an app must not
        # rely on one socket for related clicks.
        connection = usable[self._turn % len(usable)]
        envelope_id = secrets.token_hex(16)
        message: JsonObject = {
            "envelope_id": envelope_id,
            "type": envelope.kind.value,
            "accepts_response_payload": envelope.kind is not EnvelopeKind.EVENT,
            "payload": envelope.payload,
        }
        if retry is not None:
            message["retry_attempt"] = retry.num
            message["retry_reason"] = retry.reason
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        connection.waiting[envelope_id] = future
        try:
            await connection.socket.send_json(message)
            return Ack(await within_deadline(self._clock, _result(future)))
        except TimeoutError:
            return NoAck("timeout")
        except ConnectionError:
            return NoAck("connection_failed")
        finally:
            connection.waiting.pop(envelope_id, None)

    async def ask_to_reconnect(
        self, count: int | None = None, reason: str = "refresh_requested"
    ) -> None:
        """Send `disconnect` with this reason to `count` sockets, or to all."""
        for connection in self.connections[:count]:
            await _send_disconnect(connection, reason)

    def drop(self, count: int | None = None) -> None:
        """Close `count` sockets, or all, without a `disconnect` message."""
        for connection in self.connections[:count]:
            connection.closing = True
            # Aborted, not closed: a broken network sends no close frame.
            transport = connection.request.transport
            if transport is not None:
                transport.abort()

    async def close(self) -> None:
        """Close every socket."""
        for connection in tuple(self.connections):
            connection.closing = True
            await connection.socket.close(code=1001)

    def _usable(self) -> Iterator[Connection]:
        return (
            connection
            for connection in self.connections
            if not (connection.closing or connection.socket.closed)
        )

    def _hello(self) -> JsonObject:
        return {
            "type": "hello",
            "num_connections": len(self.connections),
            "debug_info": {"host": HOST, "approximate_connection_time": 18060},
            "connection_info": {"app_id": self._app_id},
        }


async def _result(future: asyncio.Future[object]) -> object:
    return await future


async def _send_disconnect(connection: Connection, reason: str) -> None:
    connection.closing = True
    with suppress(ConnectionError):
        await connection.socket.send_json(
            {"type": "disconnect", "reason": reason, "debug_info": {"host": HOST}}
        )
