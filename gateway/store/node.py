"""The connections to one server: a shared one, and some for commands that block."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from twokey.gateway.store.multiplexed import (
    Command,
    MultiplexedConnection,
    Reply,
    raise_first,
)
from twokey.gateway.store.server_address import ServerAddress

CALL_S = 10.0
"""How long a call may take, waiting included. More than the longest BLOCK of a reader,
or each quiet moment would look like a broken connection."""

_CLOSED = "The connection was closed."
_MAX_BLOCKING = 64
_BLOCKING = frozenset(
    {
        "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX",
        "BZPOPMIN", "WAIT", "WAITAOF",
    }
)  # fmt: skip

# A peer that is gone without a word (a cut cable, a NAT that forgot us) is noticed by
# the kernel after this many seconds, well before a call's time is over.
_KEEPALIVE_IDLE_S = 3
_KEEPALIVE_PROBE_S = 1
_KEEPALIVE_PROBES = 3
_UNACKNOWLEDGED_S = 5


Connect = Callable[[], Awaitable[MultiplexedConnection]]


class UntrustedCertificateError(RedisConnectionError):
    """The certificate of a server is not one that is trusted; waiting does not help."""


class Node:
    """One server, as one event loop sees it.

    Commands that wait at the server have connections of their own: on the shared one,
    everybody behind them would wait with them.

    Args:
        connect: opens one connection to the server.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._shared: MultiplexedConnection | None = None
        self._opening: asyncio.Task[MultiplexedConnection] | None = None
        self._blocking: set[MultiplexedConnection] = set()
        self._idle: list[MultiplexedConnection] = []
        self._blocking_limit = asyncio.Semaphore(_MAX_BLOCKING)
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, so that no connection is opened any more."""
        return self._is_closed

    async def ask(self, commands: Sequence[Command], deadline: float) -> list[Reply]:
        """Send commands as one piece and return a reply to each, errors as exceptions.

        Raises:
            ConnectionError: of redis-py; the connection was not made, or broke.
            TimeoutError: of redis-py; there was no reply in time.
        """
        if any(map(blocks, commands)):
            return await self._ask_apart(commands, deadline)
        shared = self._shared
        if shared is None or not shared.is_open:
            shared = await self._open_shared(deadline)
        return await shared.ask(commands, deadline)

    async def masters(self, deadline: float) -> dict[str, Node]:
        """Return this one server."""
        del deadline
        return {"": self}

    async def close(self) -> None:
        """Close every connection; who waits for a reply gets an error."""
        self._is_closed = True
        if opening := self._opening:
            opening.cancel()
            await asyncio.wait([opening])
        # All first: while one is waited for, none of the others is used any more.
        for one in self.drop():
            await one.wait_closed()

    def drop(self) -> Sequence[MultiplexedConnection]:
        """Close the connections that are open; the next call opens new ones."""
        every = [*self._blocking, *([self._shared] if self._shared else [])]
        for one in every:
            one.close()
        self._blocking.clear()
        self._idle.clear()
        return every

    async def _open_shared(self, deadline: float) -> MultiplexedConnection:
        """Open the shared connection, once for all who wait for it."""
        opening = self._opening
        if opening is None:
            opening = self._opening = asyncio.create_task(self._share())
            # Asked for in any case: else asyncio would report an error that nobody saw.
            opening.add_done_callback(_look_at_error)
        try:
            async with asyncio.timeout_at(deadline):
                # Waited for and not awaited: who gives up takes it from nobody else.
                await asyncio.wait([opening])
        except TimeoutError:
            raise RedisTimeoutError("No connection in time.") from None
        if opening.cancelled():
            raise RedisConnectionError(_CLOSED)
        if error := opening.exception():
            raise again(error)
        return opening.result()

    async def _share(self) -> MultiplexedConnection:
        try:
            opened = self._shared = await self._open()
            return opened
        finally:
            self._opening = None

    async def _open(self) -> MultiplexedConnection:
        if self._is_closed:
            raise RedisConnectionError(_CLOSED)
        try:
            async with asyncio.timeout(CALL_S):
                return await self._connect()
        except TimeoutError:
            raise RedisTimeoutError("No connection in time.") from None
        except ssl.SSLCertVerificationError as error:
            raise UntrustedCertificateError(str(error)) from error

    async def _ask_apart(
        self, commands: Sequence[Command], deadline: float
    ) -> list[Reply]:
        """Ask on a connection that nobody shares meanwhile."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._blocking_limit.acquire()
        except TimeoutError:
            raise RedisTimeoutError("No connection in time.") from None
        try:
            connection = await self._own()
            try:
                replies = await connection.ask(commands, deadline)
            except BaseException:
                # The server may still hold the command: it would take what it waits
                # for, and nobody would be there to get it.
                self._drop(connection)
                raise
            self._idle.append(connection)
            return replies
        finally:
            self._blocking_limit.release()

    async def _own(self) -> MultiplexedConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._drop(connection)
        connection = await self._open()
        self._blocking.add(connection)
        return connection

    def _drop(self, connection: MultiplexedConnection) -> None:
        self._blocking.discard(connection)
        connection.close()


def blocks(words: Command) -> bool:
    """Return whether the server may wait before it answers this command."""
    name = words[0]
    return name in _BLOCKING or (name in {"XREAD", "XREADGROUP"} and "BLOCK" in words)


async def open_connection(address: ServerAddress) -> MultiplexedConnection:
    """Open a connection, log in and select the database.

    Raises:
        OSError: when there is no server.
        RedisError: when it refuses.
    """
    loop = asyncio.get_running_loop()
    made: MultiplexedConnection

    def protocol() -> MultiplexedConnection:
        return MultiplexedConnection(CALL_S)

    if address.path:
        _, made = await loop.create_unix_connection(protocol, address.path)
    else:
        transport, made = await loop.create_connection(
            protocol, address.host, address.port, ssl=address.tls
        )
        keep_alive(transport.get_extra_info("socket"))
    try:
        if address.handshake:
            raise_first(await made.ask(address.handshake, loop.time() + CALL_S))
    except BaseException:
        made.close()
        raise
    return made


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice a peer that is gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_PROBE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        # Keepalive does not look while something was sent and not acknowledged.
        timeout_ms = _UNACKNOWLEDGED_S * 1000
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
    elif sys.platform == "darwin":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE, _KEEPALIVE_IDLE_S)


def _look_at_error(opening: asyncio.Task[MultiplexedConnection]) -> None:
    if not opening.cancelled():
        opening.exception()


def again(error: BaseException) -> Exception:
    """Return an error anew for each who gets it: a traceback belongs to one."""
    if isinstance(error, RedisError):
        return type(error)(*error.args)
    return RedisConnectionError(str(error))
