"""A multiplexed connection: many callers share one, and nobody waits for another.

The requests of one turn of the event loop are sent in one write. The server answers in
the order of the requests, so each reply belongs to the oldest request that has none.
A caller that gives up leaves its request in that order: the reply is read and dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import cast

import hiredis
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

Argument = str | bytes | int
Command = Sequence[Argument]
Reply = object

MAX_UNANSWERED = 1000
"""Most requests that the server has to answer at a time; the others wait here."""

MAX_UNANSWERED_BYTES = 4 * 1024 * 1024
"""Their size. A single request may be larger; then it is sent alone."""


# Both libraries type these partially.
_pack = cast("Callable[[Command], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
_error = cast("Callable[[str], Exception]", DefaultParser.parse_error)  # pyright: ignore[reportUnknownMemberType]


class MaybeDoneError(RedisError):
    """Commands were sent and not answered: the server may have done them, or not."""


class NoReplyError(MaybeDoneError, RedisConnectionError):
    """The connection ended while it owed a reply."""


class LateReplyError(MaybeDoneError, RedisTimeoutError):
    """The reply did not come in time."""


class _Request:
    """Commands of one caller, sent as one piece, and the replies so far.

    ``size`` is how many bytes were sent; 0 before that.
    """

    __slots__ = ("commands", "deadline", "replies", "result", "size")

    def __init__(
        self,
        commands: Sequence[Command],
        deadline: float,
        result: asyncio.Future[list[Reply]],
    ) -> None:
        self.commands = commands
        self.deadline = deadline
        self.result = result
        self.replies: list[Reply] = []
        self.size = 0


class MultiplexedConnection(asyncio.Protocol):
    """The client's side of one open connection. It belongs to one event loop.

    A connection ends when its server closes it, sends what is no reply, or is silent
    for too long while it owes one. Every request then fails with redis-py's
    ConnectionError. It is not opened again: see `twokey.gateway.store.node`.

    Args:
        silence_s: how long the server may be silent while it owes a reply.
    """

    def __init__(self, silence_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=_error)
        self._transport: asyncio.WriteTransport | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._why_closed = ""
        self._unsent: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._unanswered_bytes = 0
        self._heard_at = 0.0
        self._is_write_due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent."""
        return not self._why_closed

    def ask(
        self, commands: Sequence[Command], deadline: float
    ) -> asyncio.Future[list[Reply]]:
        """Send commands as one piece, with nobody else's between them.

        Args:
            commands: at least one.
            deadline: when to give up, by the loop's clock; waiting counts.

        Returns:
            A reply to each. One that is an error is an exception in the list, also
            inside a reply.
        """
        result: asyncio.Future[list[Reply]] = self._loop.create_future()
        if self._why_closed:
            result.set_exception(RedisConnectionError(self._why_closed))
            return result
        self._unsent.append(_Request(commands, deadline, result))
        if self._timer is None or deadline < self._timer.when():
            self._look_at(deadline)
        self._write_soon()
        return result

    def close(self, why: str = "The connection was closed.") -> None:
        """Fail every request and close the connection."""
        self._fail(why)

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio calls this)."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Match replies to requests (asyncio calls this)."""
        self._heard_at = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._answer(reply)
        except RedisError as error:
            # What comes after it cannot be matched to requests.
            self._fail(f"The server sent what is no reply: {error}")
        if self._unsent:
            self._write_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every request (asyncio calls this)."""
        self._fail(str(exc) if exc else "Connection closed by server.")
        if not self._ended.done():
            self._ended.set_result(None)

    def _answer(self, reply: Reply) -> None:
        if not self._sent:
            # As a server does that has too many clients, before it hangs up.
            raise InvalidResponse(f"unasked {reply!r}"[:200])
        request = self._sent[0]
        request.replies.append(reply)
        if len(request.replies) < len(request.commands):
            return
        self._sent.popleft()
        self._unanswered_bytes -= request.size
        if not request.result.done():
            request.result.set_result(request.replies)

    def _write_soon(self) -> None:
        """Write at the end of this turn of the loop, with what else comes in it."""
        if not self._is_write_due:
            self._is_write_due = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_write_due = False
        if self._transport is None or self._why_closed:
            return
        if not self._sent:
            self._heard_at = self._loop.time()
        chunks: list[bytes] = []
        while self._unsent and self._has_room():
            request = self._unsent.popleft()
            # Nobody waits any more for what was not sent.
            if not request.result.done() and (packed := _packed(request)):
                request.size = len(packed)
                self._unanswered_bytes += request.size
                self._sent.append(request)
                chunks.append(packed)
        if chunks:
            self._transport.write(b"".join(chunks))

    def _has_room(self) -> bool:
        return (
            len(self._sent) < MAX_UNANSWERED
            and self._unanswered_bytes < MAX_UNANSWERED_BYTES
        )

    def _look_at_clock(self) -> None:
        """Give up for those whose time is over; close a connection that is dead."""
        self._timer = None
        now = self._loop.time()
        # Requests whose callers have given up count as well: were they left out, a
        # dead connection would stay as long as no caller has much patience.
        if self._sent and now >= self._heard_at + self._silence_s:
            self._fail(f"Nothing was heard for {self._silence_s:g} s.")
            return
        waiting = [one for one in self._requests() if not one.result.done()]
        for request in waiting:
            if now >= request.deadline:
                kind = LateReplyError if request.size else RedisTimeoutError
                request.result.set_exception(kind("No reply in time."))
        due = [one.deadline for one in waiting if one.deadline > now]
        if self._sent:
            due.append(self._heard_at + self._silence_s)
        if due:
            self._look_at(min(due))

    def _look_at(self, when: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look_at_clock)

    def _requests(self) -> Iterator[_Request]:
        return chain(self._sent, self._unsent)

    def _fail(self, why: str) -> None:
        if self._why_closed:
            return
        self._why_closed = why
        if self._timer:
            self._timer.cancel()
        for request in self._requests():
            if not request.result.done():
                kind = NoReplyError if request.size else RedisConnectionError
                request.result.set_exception(kind(why))
        self._sent.clear()
        self._unsent.clear()
        if self._transport is None:
            self._ended.set_result(None)
        else:
            # Not close(): that waits until the server has taken all that was written.
            self._transport.abort()


def _packed(request: _Request) -> bytes:
    """Return a request as it is sent; b"" when it cannot be, which its caller learns.

    Only here and not when it is asked: who waits holds no second copy.
    """
    try:
        return b"".join(map(_packed_command, request.commands))
    except TypeError as error:
        request.result.set_exception(DataError(str(error)))
    except UnicodeEncodeError as error:
        request.result.set_exception(error)
    return b""


def _packed_command(words: Command) -> bytes:
    name = words[0]
    # "CONFIG GET" is two words for the server.
    if isinstance(name, str) and " " in name:
        words = (*name.split(), *words[1:])
    return _pack(tuple(words))


def raise_first(replies: Iterable[Reply]) -> None:
    """Raise the first reply that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
