"""Accept connections by turns, from a socket that several processes share.

What is in the queue of the socket belongs to the process that asks first. asyncio asks
until the queue is empty, so a process that is awake takes nearly all connections of a
moment, and keeps them: a proxy in front of the bot opens many at once, and sends all
its requests over these. One that pauses after each connection leaves the next one to
the others; only where these have something else to do, it takes that as well.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from aiohttp import web

from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

PAUSE_S = 0.001
"""How long a process takes no further connection after one, and so how many it takes in
a second at most: more than it can answer requests."""

_FULL_S = 1.0
"""How long it takes none after it could not, such as with too many open files."""


class Acceptor:
    """Accepts connections for a server until it is stopped.

    Args:
        server: makes the protocol of each.
        listener: the socket; it stays open.
    """

    def __init__(self, server: web.Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._opening = set[asyncio.Task[object]]()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept from now on."""
        self._timer = None
        self._listener.settimeout(0)
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Accept no more; what was accepted is at the server then."""
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or nobody waits any more
        except OSError as error:
            log_failure(logger, error, "bot.cannot_accept")
            self._pause(_FULL_S)
            return
        self._pause(PAUSE_S)
        connection.settimeout(0)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._server, connection)
        except OSError as error:
            log_failure(logger, error, "bot.connection_not_opened")
            connection.close()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, self.start)
