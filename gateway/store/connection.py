"""Commands, transactions and scripts on a Redis server, with Keyturn's own errors.

Theory of operation of confirmed writes: a failover loses none that was acknowledged.
Writes are followed, on their own connection, by a mark and by ``WAIT``: a replica that
has the mark has all that its master wrote before. The mark is a write in any case. A
script that finds its work done writes nothing, and ``WAIT`` alone would then answer at
once on a new connection, whatever replicas have (measured on Valkey 9.1 and Redis 8.10;
redis/redis#6393).

Writes and mark are one transaction. A server that has only a part of them, because
their slot moves to another one, runs none: so none runs twice, and none is confirmed by
a server that it is not on.

When no replica answers in time, the same mark is written again where it still is, and
waited for. Where it is not, another server has become the master and the writes are
lost: they have to run again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

import redis.asyncio as aioredis
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyturn.gateway.clock import ReferenceClock
from keyturn.gateway.errors import (
    KeptInPart,
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
)
from keyturn.gateway.store.ledger import Ledger
from keyturn.gateway.store.servers import (
    Argument,
    Cluster,
    Command,
    MaybeDoneError,
    NotMasterError,
    Reply,
    SentinelMaster,
    Server,
    UntrustedCertificateError,
    raise_first,
    store_address,
)

__all__ = [
    "Argument", "Connection", "Entry", "Reply",
    "claimed", "entries", "fields", "first_stream", "milliseconds", "number", "text",
]  # fmt: skip

# Tries within half a second bridge a connection that broke. A longer outage is the
# caller's to bridge, who knows how long its person or its lease can wait.
_PAUSES_S = (0.04, 0.08, 0.16)
_CLOSE_S = 5.0

CALL_S = 10.0
"""How long a call may take, waiting included. More than the longest BLOCK of a reader,
or each quiet moment would look like a broken connection."""

HINT = "check that Redis runs and that KEYTURN_REDIS_URL names it, then try again."
EMBEDDED_HINT = (
    "the embedded Valkey is started again by itself; try again, and see 'valkey.log' "
    "in the data folder if it does not come back."
)

_WRITABLE_HINT = "check that Redis is writable, then try again."
_HINTS: dict[type[Exception], str] = {
    AuthenticationError: "put the user and the password that it wants into "
    "KEYTURN_REDIS_URL, and start this again.",
    OutOfMemoryError: "its memory is full: raise 'maxmemory', or make room.",
    NotMasterError: "if it stays a replica, set KEYTURN_REDIS_URL to its master.",
    UntrustedCertificateError: "its certificate is not trusted here: renew one that "
    "has expired, use the host name that it was made for, and name the authority of "
    "your own that signed it (…?ssl_ca_certs=/path/ca.pem in KEYTURN_REDIS_URL).",
    NoPermissionError: "let its user do this (ACL SETUSER), then try again.",
}
_BEGINNINGS = {
    "MISCONF": "it cannot write its snapshot: make room on its disk, see its log, then "
    "run BGSAVE.",
    "DB index": "name a database that it has, such as /0, in KEYTURN_REDIS_URL.",
}
"""Hints about errors that have no class, by how they begin."""

# How a server marks an error that ended a script at one of its lines. No class tells
# it from one that kept the script from beginning.
_IN_A_SCRIPT = "@user_script:"

WAIT_MS = 500
"""How long one ``WAIT`` waits before it is tried again."""

TRIES = 3
"""How often it is waited for: Slack waits for 3 s altogether."""

_MARK_MS = 30_000
"""How long a mark is kept: longer than all tries take."""

Ask = Callable[[Sequence[Command]], Awaitable[list[Reply]]]
"""Sends commands as one piece on one connection."""


class Connection:
    """The connections to the store, for each event loop that asks.

    An agent asks from several loops: the worker's, and the background loop that keeps
    claims alive and serves synchronous agents (`keyturn.agent.bridge`). A connection
    belongs to one loop, see `keyturn.gateway.store.servers`.
    Commands are tried again after a broken connection: callers make them repeatable.

    Attributes:
        secrets: what seals its texts, the one in use first.
        encrypts: whether texts of people, agents and tools are encrypted.
        ledger: where attempts to run calls are spent; None: in records alone.
        clock: the store's clock, as read last by `ProcessStore`.
        confirmed_by: so many replicas must have what a script writes before it counts.
        resent: how often something was sent again, and may have been done before.
    """

    def __init__(self, url: str, *, is_embedded: bool = False) -> None:
        self.url, self.clock = url, ReferenceClock()
        self.secrets = tuple[bytes, ...]()
        self.encrypts, self.confirmed_by, self.resent = False, 0, 0
        self.ledger: Ledger | None = None
        self._hint, self._process = EMBEDDED_HINT if is_embedded else HINT, os.getpid()
        self._servers: dict[asyncio.AbstractEventLoop, Server | Cluster] = {}
        self._parents = self._servers

    async def close(self) -> None:
        """Close every connection, of the other loops as well."""
        here = asyncio.get_running_loop()
        for loop, servers in list(self._servers.items()):  # others may open one now
            if loop is here:
                await servers.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(servers.close(), loop)
                # That loop may stop before it comes to this.
                async with asyncio.timeout(_CLOSE_S):
                    await asyncio.wrap_future(closing)
        self._servers.clear()

    async def command(self, *words: Argument) -> Reply:
        """Run one command.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
        """
        with self._errors():
            [reply] = await self._ask([words])
        return _converted(words, reply)

    async def now_ms(self, near: str) -> int:
        """Return the time of a server, by which all that it keeps is dated.

        Args:
            near: a key. Servers of a cluster have clocks of their own, and what one
                has kept is compared with its own; it also answers while others do not.

        Raises:
            StoreUnavailable: when the server did not answer.
        """
        # TIME names no key: the one beside it leads both to the server that has it.
        _, time = await self.transaction(["EXISTS", near], ["TIME"])
        return milliseconds(time)

    async def transaction(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands as one MULTI/EXEC, so that they see one state.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
        """
        if not commands:
            return []
        with self._errors():
            done = await self._done_in_one_step(commands)
        return list(map(_converted, commands, done))

    async def evalsha(
        self,
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> list[Reply]:
        """Run a script by its digest; load it when the server does not know it.

        Args:
            source: the script.
            keys: all of one tenant.
            args: its other arguments.
            writes: False when it never writes, so that no replica is waited for.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
            NotConfirmed: when replicas did not confirm it; it may be kept.
        """
        words: tuple[Argument, ...] = (len(keys), *keys, *args)
        # As `_errors` does, without its generator: each click runs a script.
        try:
            try:
                sha = _digest(source)
                reply = await self._run(("EVALSHA", sha, *words), keys, writes=writes)
            except NoScriptError:
                # After a flush or a failover. Safe to repeat: nothing was run.
                # By EVAL: between SCRIPT LOAD and EVALSHA it may be forgotten again.
                reply = await self._run(("EVAL", source, *words), keys, writes=writes)
        except (RedisError, OSError) as error:
            raise unavailable(error, self._hint, writes=writes) from error
        return cast("list[Reply]", reply)

    async def confirm(self, key: str) -> None:
        """Wait until replicas have what the master of this key has now.

        Raises:
            StoreUnavailable: when it did not answer.
            NotConfirmed: when replicas did not confirm it.
        """
        if self.confirmed_by:
            with self._errors():
                await self._confirmed((), key)

    async def keep(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands as one MULTI/EXEC and wait for replicas, as scripts do.

        For what is a promise to somebody: where a failover loses it, nobody makes it
        again. The first command begins with one of the keys, which are of one tenant.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
            NotConfirmed: when replicas did not confirm it; it may be kept.
        """
        with self._errors(writes=True):
            if self.confirmed_by:
                done = await self._confirmed(commands, str(commands[0][1]))
            else:
                done = await self._done_in_one_step(commands)
        return list(map(_converted, commands, done))

    async def _done_in_one_step(self, commands: Sequence[Command]) -> list[Reply]:
        # In MULTI: between the commands of a plain pipeline others' may run.
        *_, done = await self._ask([("MULTI",), *commands, ("EXEC",)])
        replies = cast("list[Reply]", done)
        raise_first(replies)
        return replies

    async def _run(self, words: Command, keys: Sequence[str], *, writes: bool) -> Reply:
        """Send a script, and wait for replicas where some have to confirm it."""
        if not (writes and self.confirmed_by):
            [reply] = await self._ask([words])
            return reply
        [reply] = await self._confirmed([words], keys[0])
        return reply

    async def _confirmed(self, commands: Sequence[Command], key: str) -> list[Reply]:
        """Run commands in one step and wait for replicas, see `confirmed`."""
        try:
            return await confirmed(self._ask, commands, key)
        except LostWriteError:
            # By the next master, or by the same one after a pause of this process.
            self.resent += 1
            return await confirmed(self._ask, commands, key)

    async def sequence(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands one after another on one connection, not as a transaction.

        So a write and then ``WAIT``, which waits for what its own connection wrote. One
        without a write before it waits for nothing. All keys are of one tenant.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
        """
        with self._errors():
            replies = await self._ask(commands)
        return list(map(_converted, commands, replies))

    async def on_each_master(self, *words: Argument) -> dict[str, Reply]:
        """Run one command on every master, such as ``INFO``; by its address.

        Raises:
            StoreUnavailable: when one did not answer or refused it.
        """
        with self._errors():
            deadline = asyncio.get_running_loop().time() + CALL_S
            masters = await self._here().masters(deadline)
            asked = [node.ask([words], deadline) for node in masters.values()]
            replies = [reply for [reply] in await asyncio.gather(*asked)]
            raise_first(replies)
        return {
            address: _converted(words, reply)
            for address, reply in zip(masters, replies, strict=True)
        }

    async def _ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands as one piece; try again when the connection breaks."""
        loop, servers = asyncio.get_running_loop(), self._here()
        deadline = loop.time() + CALL_S
        owed: Exception | None = None
        for pause_s in (*_PAUSES_S, CALL_S):
            try:
                replies = await servers.ask(commands, deadline)
                # Among these are errors that pass: a server that loads its data.
                raise_first(replies)
            except (RedisConnectionError, RedisTimeoutError) as error:
                # What an earlier try sent may have been done, whatever comes later.
                owed = error if isinstance(error, MaybeDoneError) else owed
                if servers.is_closed or loop.time() + pause_s >= deadline:
                    if owed is None or owed is error:
                        raise
                    raise owed from error
                self.resent += 1
                await asyncio.sleep(pause_s)
            else:
                return replies
        raise AssertionError("The last pause is past every deadline.")

    def _here(self) -> Server | Cluster:
        """Return the store as the loop that runs sees it."""
        loop = asyncio.get_running_loop()
        # A fork has its parent's sockets: each would get the other's replies. They are
        # kept, since redis-py would close them for the parent's loop as well.
        if self._process != os.getpid():
            self._parents, self._process = self._servers, os.getpid()
            self._servers = {}
        found = self._servers.get(loop)
        if found is None:
            # Loops that have ended took their connections along.
            for ended in [one for one in list(self._servers) if one.is_closed()]:
                self._servers.pop(ended, None)
            found = self._servers[loop] = _servers(self.url)
        return found

    @contextmanager
    def _errors(self, *, writes: bool = False) -> Generator[None]:
        """Turn the client's errors into ours."""
        try:
            yield
        except (RedisError, OSError) as error:
            raise unavailable(error, self._hint, writes=writes) from error


def _servers(url: str) -> Server | Cluster:
    address = store_address(url)
    if address.master:
        return SentinelMaster(address)
    if address.places:
        return Cluster(address)
    return Server(partial(aioredis.ConnectionPool, **address.options))


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


@cache
def _converters() -> dict[Argument, Callable[[Reply], Reply]]:
    # Of RESP2: those of RESP3 differ between the versions of redis-py.
    known = dict(aioredis.Redis(protocol=2).response_callbacks)
    # With GET it returns what was there, which this one would compare with "OK".
    del known["SET"]
    return cast("dict[Argument, Callable[[Reply], Reply]]", known)


def _converted(words: Command, reply: Reply) -> Reply:
    """Give a reply the shape that redis-py gives it: a dict for HGETALL, and so on."""
    converter = _converters().get(words[0])
    return converter(reply) if converter else reply


def text(reply: Reply) -> str:
    """Return a bulk reply as text; "" for none."""
    if reply is None:
        return ""
    # Strict: what is not UTF-8 is not ours, and raises ValueError for its reader.
    return reply.decode("utf-8") if isinstance(reply, bytes) else str(reply)


def number(reply: Reply) -> int:
    """Return a reply as an integer; 0 for none."""
    if reply is None:
        return 0
    return int(reply) if isinstance(reply, bytes | int | str) else 0


def milliseconds(reply: Reply) -> int:
    """Return the reply of TIME in Unix milliseconds."""
    seconds, micros = cast("list[Reply]", reply)
    return number(seconds) * 1000 + number(micros) // 1000


def fields(reply: Reply) -> dict[str, bytes]:
    """Return the reply of HGETALL."""
    if isinstance(reply, dict):
        pairs = cast("dict[bytes, bytes]", reply)
        return {_name(key): value for key, value in pairs.items()}
    flat = cast("list[bytes]", reply or [])
    return {_name(key): value for key, value in zip(flat[::2], flat[1::2], strict=True)}


def _name(raw: bytes) -> str:
    # No name of ours is anything but UTF-8: what is not is simply not found.
    return raw.decode("utf-8", "replace")


@dataclass(frozen=True)
class Entry:
    """One entry of a stream."""

    id: str
    values: dict[str, bytes]


def entries(reply: Reply) -> list[Entry]:
    """Return the entries of XRANGE, or of one stream of another command's reply."""
    rows = cast("list[tuple[bytes, Reply]]", reply or [])
    return [Entry(text(entry_id), fields(values)) for entry_id, values in rows]


def first_stream(reply: Reply) -> list[Entry]:
    """Return the entries of an XREADGROUP that read one stream; none on a time-out."""
    streams = cast("list[list[Reply]]", reply or [])
    return entries(streams[0][1]) if streams else []


def claimed(reply: Reply) -> list[Entry]:
    """Return the entries that an XAUTOCLAIM took over."""
    return entries(cast("list[Reply]", reply)[1])


def refuses(error: StoreUnavailable) -> bool:
    """Return whether the store answered, and did not do what it was asked."""
    return isinstance(error.__cause__, ResponseError)


def unavailable(error: Exception, hint: str, *, writes: bool) -> StoreUnavailable:
    """Return our error for one of the client's.

    Args:
        error: of the client.
        hint: what an operator may do.
        writes: it was asked to keep something.
    """
    if isinstance(error, NotConfirmedError | LostWriteError):
        return NotConfirmed()
    kind = type(error).__name__
    if writes and isinstance(error, MaybeDoneError):
        return Unanswered(f"{kind}: {error}", hint)
    # Two classes of the name ConnectionError: Python's, and redis-py's, which is no
    # OSError.
    is_away = isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
    if is_away and not isinstance(error, NotMasterError):
        hint = _HINTS.get(type(error), hint)
        return StoreUnavailable(
            f"The store does not answer ({kind}: {error}). Nothing was recorded; {hint}"
        )
    if writes and _IN_A_SCRIPT in str(error):
        return KeptInPart(f"{kind}: {error}")
    hint = _HINTS.get(type(error), _WRITABLE_HINT)
    for beginning, other in _BEGINNINGS.items():
        if str(error).startswith(beginning):
            hint = other
    return StoreUnavailable(
        f"The store did not keep this ({kind}: {error}). Nothing was acknowledged; "
        f"{hint}"
    )


class NotConfirmedError(RedisError):
    """A master has kept a write, and no replica has confirmed it in time."""


class LostWriteError(RedisError):
    """A master has kept a write, and another one that lacks it took its place."""


async def confirmed(ask: Ask, commands: Sequence[Command], key: str) -> list[Reply]:
    """Run commands in one step; return their replies once a replica has them.

    Args:
        ask: sends commands as one piece on one connection.
        commands: what to run; none to have confirmed what is written already.
        key: one of their keys, whose hash tag the mark gets.

    Raises:
        NotConfirmedError: no replica did in time; it may be kept all the same.
        LostWriteError: it is lost and may be run again.
    """
    mark = f"{key[: key.index('}') + 1]}:confirm:{secrets.token_hex(8)}"
    written: Command = ("SET", mark, "", "PX", _MARK_MS)
    wait: Command = ("WAIT", 1, WAIT_MS)
    *_, done, replicas = await ask([("MULTI",), *commands, written, ("EXEC",), wait])
    replies = cast("list[Reply]", done)[:-1]
    # Before it is waited for: what was refused need not be confirmed.
    raise_first(replies)
    try:
        problem = await _problem(ask, written, wait, replicas)
    except (RedisError, OSError) as error:
        # The master has kept the writes, and does not say any more who else has them.
        raise NotConfirmedError from error
    if problem is not None:
        raise problem
    return replies


async def _problem(
    ask: Ask, written: Command, wait: Command, replicas: Reply
) -> type[RedisError] | None:
    """Return None once a replica has the mark, and else why it is not confirmed."""
    for _ in range(TRIES - 1):
        if replicas:
            return None
        is_kept, replicas = await ask([(*written, "XX"), wait])
        if is_kept is None:
            return LostWriteError
    return None if replicas else NotConfirmedError
