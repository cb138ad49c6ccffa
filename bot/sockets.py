"""Manage Socket Mode connections: open a new one before the old one closes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from http import HTTPStatus
from typing import Protocol, cast

import aiohttp
from slack_bolt.adapter.socket_mode.async_internals import send_async_response
from slack_bolt.response import BoltResponse
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest

from keyturn.bot.ingress import Delivery, Handle, Nonces, handle_once
from keyturn.bot.web import Slack, SlackNoResponse
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.failures import any_failure, log_failure

logger = logging.getLogger(__name__)

PING_S = 5.0
"""An abrupt loss is noticed after this long; the SDK's own default is 10 s."""

CONNECT_S = 10.0
"""How long a connection may take to open."""

_DRAIN_S = 10.0
"""How long the envelopes that are being answered may take at the end."""

_IN_A_ROW = 4
"""How many connections may open one right after the other."""


class _Session(Protocol):
    """What the SDK uses of a client session, with types."""

    @property
    def closed(self) -> bool: ...
    async def close(self) -> None: ...
    async def ws_connect(self, url: str, **options: object) -> object: ...


class _Socket(Protocol):
    """What we use of the SDK's connection, with types (its own are partial)."""

    socket_mode_request_listeners: list[object]
    wss_uri: str | None
    aiohttp_client_session: _Session

    async def connect(self) -> None: ...
    async def close(self) -> None: ...
    async def is_connected(self) -> bool: ...


class _Request(Protocol):
    """What we use of the SDK's request, with types."""

    envelope_id: str
    payload: dict[str, object]


class _Dialer:
    """Opens a connection for the SDK; each address is tried once.

    The SDK tries one until somebody answers there, while Slack's are good for less
    than a minute: after a longer outage it would never be connected again.
    """

    def __init__(self, client: _Socket) -> None:
        self._client = client
        self._unused = client.aiohttp_client_session
        self._session = cast("_Session", outgoing())
        self._opened_at = deque[float](maxlen=_IN_A_ROW)

    @property
    def closed(self) -> bool:
        """Return whether no connection can be opened any more."""
        return self._session.closed

    async def close(self) -> None:
        """Open no more."""
        await self._unused.close()
        await self._session.close()

    async def ws_connect(self, url: str, **options: object) -> object:
        """Open a connection to an address; where many open in a row, wait first."""
        self._client.wss_uri = None  # so that the SDK asks Slack for another one
        # Where ten are open, Slack ends another one as soon as it is open. Some in a
        # row are no such case: the SDK opens one for each `disconnect`.
        loop = asyncio.get_running_loop()
        if len(self._opened_at) == _IN_A_ROW:
            free_at = self._opened_at[0] + _IN_A_ROW * PING_S
            await asyncio.sleep(max(0.0, free_at - loop.time()))
        self._opened_at.append(loop.time())
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._session.ws_connect(url, **options)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # Its text would have the address, by which anybody gets in.
            raise ConnectionError(type(error).__name__) from None


class Sockets:
    """Several connections of one app; Slack delivers each payload to any one of them.

    Args:
        slack: for the addresses.
        app_token: ``xapp-…``.
        nonces: where envelopes are remembered.
        handle: gets each envelope, at most once each.
    """

    def __init__(
        self,
        slack: Slack,
        app_token: str,
        *,
        nonces: Nonces,
        handle: Handle,
    ) -> None:
        self._slack = slack
        self._app_token = app_token
        self._nonces = nonces
        self._handle = handle
        self._clients: list[_Socket] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, count: int) -> None:
        """Open connections until there are so many.

        Raises:
            SlackError: when Slack gives no address, or nobody answers there.
        """
        while len(self._clients) < count:
            url = await self._slack.open_socket(self._app_token)
            client = cast("_Socket", self._client())
            client.aiohttp_client_session = _Dialer(client)
            client.wss_uri = url
            client.socket_mode_request_listeners.append(self._receive)
            try:
                # The SDK tries again by itself, without an end.
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
        """Close all connections, once the envelopes that came are answered."""
        if self._answering:
            await asyncio.wait(self._answering, timeout=_DRAIN_S)
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
            # The client would receive nothing more after a panic of a library. Without
            # an acknowledgement Slack sends the envelope again.
            log_failure(logger, error, "bot.envelope_failed")
            return
        # A replay was handled and acknowledged before, and the acknowledgement was
        # lost. Any other status than 200 is none: Slack may send the envelope again.
        response = response or BoltResponse(status=HTTPStatus.OK)
        await send_async_response(client, received, response, 0)
