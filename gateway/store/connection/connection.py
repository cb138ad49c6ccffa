"""Commands, transactions and scripts on a Redis server, with Keyturn's own errors.

Confirmed writes survive a failover. A transaction of writes ends with a marker key,
followed by ``WAIT`` on the same connection: a replica that has the marker also has all
earlier writes. The marker makes sure that something is written: after a script without
writes, ``WAIT`` on a new connection would return at once, whether or not replicas are
up to date (measured on Valkey 9.1 and Redis 8.10; redis/redis#6393).

The writes and the marker are one transaction. While their slot moves, a server that has
only some of the keys runs none of the commands. So no write runs twice, and no server
confirms a write that it lacks.

If no replica confirms in time, the marker is written again only where it still exists,
and ``WAIT`` is repeated. If the marker is missing, another server has become the master
without the writes, and they have to run again.
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
from typing import Protocol, cast

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from keyturn.gateway.approvals.executing import Attempt
from keyturn.gateway.clock import ReferenceClock
from keyturn.gateway.errors import (
    KeptInPart,
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
)
from keyturn.gateway.store.connection.servers import (
    Argument,
    Cluster,
    Command,
    MaybeDoneError,
    NotMasterError,
    Reply,
    SentinelMaster,
    Server,
    raise_first,
    store_address,
)


class Ledger(Protocol):
    """The ledger of used attempts, outside of Redis: it records each one once.

    An attacker with write access to Redis can restore an older record with a valid
    seal. So a change first records its attempts in a database next to the checkpoints.
    An attempt that is recorded there is refused, regardless of the state in Redis.

    If the write to Redis fails, the attempt is taken back, since its caller runs
    nothing. A process that dies between the two writes leaves a recorded attempt that
    is never used. No other process gets that attempt: the call is in doubt when the
    claim would have ended.
    """

    async def spend(
        self,
        attempts: Sequence[Attempt],
        unspent: Sequence[Attempt] = (),
        *,
        now_ms: int,
        again: bool = False,
    ) -> None:
        """Record all of these attempts, or none.

        Args:
            attempts: attempts to record; one without an owner may exist already.
            unspent: attempts that must still be unused; they stay unused.
            now_ms: the store's clock.
            again: the same owner may have recorded the attempt already.

        Raises:
            AlreadySpent: an attempt was recorded before; nothing was written.
            LeaseLost: another process has the lease; nothing was written.
            StoreUnavailable: when the result is unknown.
        """

    async def take_back(self, attempts: Sequence[Attempt], *, now_ms: int) -> None:
        """Release unused attempts that were recorded at ``now_ms``.

        Attempts recorded with ``again`` stay, since they were granted.
        """

    async def forget(self, now_ms: int) -> None:
        """Delete attempts that no record can use any more."""


__all__ = [
    "Argument", "Command", "Connection", "Entry", "Reply",
    "claimed", "entries", "fields", "first_stream", "milliseconds", "number", "text",
]  # fmt: skip

# Retries within half a second bridge a broken connection. A longer outage is left to
# the caller, which has the deadline of its person or its lease.
_PAUSES_S = (0.04, 0.08, 0.16)
_CLOSE_S = 5.0

CALL_S = 10.0
"""Time limit of a call, including waits. Longer than the longest BLOCK of a reader;
otherwise an idle stream would look like a broken connection."""

HINT = "check that Redis runs and that KEYTURN_REDIS_URL names it, then try again."
EMBEDDED_HINT = (
    "Keyturn restarts the embedded Valkey automatically; try again, and see "
    "'valkey.log' in the data folder if it stays down."
)

_WRITABLE_HINT = "check that Redis is writable, then try again."
_HINTS = {
    "AuthenticationError": "set its user and password in KEYTURN_REDIS_URL, "
    "and start this again.",
    "OutOfMemoryError": "its memory is full: raise 'maxmemory', or make room.",
    "NotMasterError": "if it stays a replica, set KEYTURN_REDIS_URL to its master.",
    "UntrustedCertificateError": "its certificate is not trusted here: renew it, use "
    "the host name that it was made for, or name the authority that signed it "
    "(…?ssl_ca_certs=/path/ca.pem in KEYTURN_REDIS_URL).",
    "NoPermissionError": "let its user do this (ACL SETUSER), then try again.",
    "ResponseError: MISCONF": "it cannot write its snapshot: make room on its disk, "
    "see its log, then run BGSAVE.",
    "ResponseError: DB index": "name a database that it has, such as /0, in "
    "KEYTURN_REDIS_URL.",
}
"""Next steps, by the beginning of an error's class and message."""

# The marker of an error raised inside a running script. redis-py has no class that
# separates it from an error that prevented the script from starting.
_IN_A_SCRIPT = "@user_script:"

WAIT_MS = 500
"""Timeout of one ``WAIT``."""

TRIES = 3
"""Attempts to get a confirmation: Slack allows 3 s for the whole request."""

_MARK_MS = 30_000
"""Lifetime of a marker: longer than all attempts together."""

Ask = Callable[[Sequence[Command]], Awaitable[list[Reply]]]
"""Send commands as one batch on one connection."""


class Connection:
    """The connections to the store, one set for each event loop.

    An agent uses several loops: the worker's loop, and the background loop that keeps
    claims alive and serves synchronous agents (`keyturn.gateway.client.bridge`). A
    connection belongs to one loop, see `keyturn.gateway.store.connection.servers`.
    Commands are repeated after a broken connection, so callers make them idempotent.

    Attributes:
        secrets: sealing keys, the current one first.
        encrypts: True if texts of people, agents and tools are encrypted.
        ledger: table of used attempts to execute calls; None: only records count.
        clock: the store's clock, last read by `ProcessStore`.
        confirmed_by: replicas that must have a script's writes before it succeeds.
        resent: number of repeated commands that may have been executed before.
    """

    def __init__(self, url: str, *, is_embedded: bool = False) -> None:
        self.url, self.clock = url, ReferenceClock()
        self.secrets = tuple[bytes, ...]()
        self.encrypts, self.confirmed_by, self.resent = False, 0, 0
        self.ledger: Ledger | None = None
        self._hint = EMBEDDED_HINT if is_embedded else HINT
        # A forked process shares the parent's sockets and would mix up the replies.
        # The parent's are kept: closing them would close them for the parent, too.
        self._servers: dict[
            tuple[int, asyncio.AbstractEventLoop], Server | Cluster
        ] = {}

    async def close(self) -> None:
        """Close every connection, of the other loops as well."""
        here = asyncio.get_running_loop()
        # Other threads may add one.
        for (process, loop), servers in list(self._servers.items()):
            if process == os.getpid() and loop is here:
                await servers.close()
            elif process == os.getpid() and loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(servers.close(), loop)
                # The other loop may stop before it runs this.
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
        """Return the time of the server that has a key; its data has its timestamps.

        Args:
            near: a key. Each server of a cluster has a separate clock, and timestamps
                are compared with the clock that made them. Only this server is needed.

        Raises:
            StoreUnavailable: when the server did not answer.
        """
        # TIME has no key: EXISTS routes both to the right server.
        _, time = await self.transaction(["EXISTS", near], ["TIME"])
        return milliseconds(time)

    async def hash_now(self, key: str) -> tuple[dict[str, bytes], int]:
        """Return the fields of a hash and the time of its server, in one snapshot."""
        found, time = await self.transaction(["HGETALL", key], ["TIME"])
        return fields(found), milliseconds(time)

    async def transaction(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands as one MULTI/EXEC on a consistent state.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
        """
        if not commands:
            return []
        with self._errors():
            done = await self._in_one_step(commands)
        return list(map(_converted, commands, done))

    async def evalsha(
        self,
        source: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        writes: bool = True,
    ) -> list[Reply]:
        """Run a script by its digest, or by its source if the server lacks it.

        Args:
            source: the script.
            keys: Redis keys, all of one tenant.
            args: the other arguments.
            writes: False for a script that only reads; skips the wait for replicas.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
            NotConfirmed: when replicas did not confirm it; it may have been written.
        """
        words: tuple[Argument, ...] = (len(keys), *keys, *args)
        run = partial(self._kept, keys[0]) if writes and keys else self._in_one_step
        with self._errors(writes=writes):
            try:
                [reply] = await run([("EVALSHA", _digest(source), *words)])
            except NoScriptError:
                # The script cache is empty after a flush or a failover. Nothing ran,
                # so a repeat is safe. EVAL, because the cache may be emptied again
                # between SCRIPT LOAD and EVALSHA.
                [reply] = await run([("EVAL", source, *words)])
        return cast("list[Reply]", reply)

    async def confirm(self, key: str) -> None:
        """Wait until replicas have everything that the key's master has now.

        Raises:
            StoreUnavailable: when it did not answer.
            NotConfirmed: when replicas did not confirm it.
        """
        if self.confirmed_by:
            with self._errors():
                await self._kept(key, ())

    async def keep(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands as one MULTI/EXEC and wait for replicas, as scripts do.

        For writes that no retry would restore after a failover. The second word of the
        first command is a key; all keys belong to one tenant.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
            NotConfirmed: when replicas did not confirm it; it may have been written.
        """
        with self._errors(writes=True):
            done = await self._kept(str(commands[0][1]), commands)
        return list(map(_converted, commands, done))

    async def _in_one_step(self, commands: Sequence[Command]) -> list[Reply]:
        if len(commands) == 1:
            return await self._ask(commands)
        # MULTI keeps other clients' commands out; a plain pipeline does not.
        *_, done = await self._ask([("MULTI",), *commands, ("EXEC",)])
        replies = cast("list[Reply]", done)
        raise_first(replies)
        return replies

    async def _kept(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one step; wait for replicas if confirmation is required."""
        if not self.confirmed_by:
            return await self._in_one_step(commands)
        try:
            return await confirmed(self._ask, commands, key)
        except LostWriteError:
            # The next master runs them, or the same one after this process was paused.
            self.resent += 1
            return await confirmed(self._ask, commands, key)

    async def on_each_master(self, *words: Argument) -> dict[str, Reply]:
        """Run one command, such as ``INFO``, on every master; replies by address.

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
        """Send commands as one batch; repeat them when the connection breaks."""
        loop, servers = asyncio.get_running_loop(), self._here()
        deadline = loop.time() + CALL_S
        owed: Exception | None = None
        for pause_s in (*_PAUSES_S, CALL_S):
            try:
                replies = await servers.ask(commands, deadline)
                # Some error replies are temporary: a server loading its data.
                raise_first(replies)
            except (RedisConnectionError, RedisTimeoutError) as error:
                # An earlier attempt may have been executed, whatever happens later.
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
        """Return the servers of the running loop."""
        place = os.getpid(), asyncio.get_running_loop()
        found = self._servers.get(place)
        if found is None:
            # The connections of a closed loop are closed as well.
            for ended in [one for one in list(self._servers) if one[1].is_closed()]:
                self._servers.pop(ended, None)
            found = self._servers[place] = _servers(self.url)
        return found

    @contextmanager
    def _errors(self, *, writes: bool = False) -> Generator[None]:
        """Convert the client's errors to Keyturn's."""
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
    # The callbacks for RESP2: those for RESP3 vary between versions of redis-py.
    known = dict(aioredis.Redis(protocol=2).response_callbacks)
    # SET with GET returns the old value; the callback would compare it with "OK".
    del known["SET"]
    return cast("dict[Argument, Callable[[Reply], Reply]]", known)


def _converted(words: Command, reply: Reply) -> Reply:
    """Convert a reply as redis-py does: a dict for HGETALL, and so on."""
    converter = _converters().get(words[0])
    return converter(reply) if converter else reply


def text(reply: Reply) -> str:
    """Return a bulk reply as text; "" for a null reply."""
    if reply is None:
        return ""
    # Strict: Keyturn writes only UTF-8. Anything else raises ValueError for the caller.
    return reply.decode("utf-8") if isinstance(reply, bytes) else str(reply)


def number(reply: Reply) -> int:
    """Return a reply as an integer; 0 for a null reply."""
    if reply is None:
        return 0
    return int(reply) if isinstance(reply, bytes | int | str) else 0


def milliseconds(reply: Reply) -> int:
    """Convert the reply of TIME to Unix milliseconds."""
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
    # Keyturn's field names are UTF-8; another name matches no lookup.
    return raw.decode("utf-8", "replace")


@dataclass(frozen=True)
class Entry:
    """An entry of a stream."""

    id: str
    values: dict[str, bytes]


def entries(reply: Reply) -> list[Entry]:
    """Return the entries of XRANGE, or of one stream of another command's reply."""
    rows = cast("list[tuple[bytes, Reply]]", reply or [])
    return [Entry(text(entry_id), fields(values)) for entry_id, values in rows]


def first_stream(reply: Reply) -> list[Entry]:
    """Return the entries of an XREADGROUP of one stream; none after a timeout."""
    streams = cast("list[list[Reply]]", reply or [])
    return entries(streams[0][1]) if streams else []


def claimed(reply: Reply) -> list[Entry]:
    """Return the entries claimed by an XAUTOCLAIM."""
    return entries(cast("list[Reply]", reply)[1])


def refuses(error: StoreUnavailable) -> bool:
    """Return True if the store rejected the command with an error reply."""
    return isinstance(error.__cause__, ResponseError)


def unavailable(error: Exception, hint: str, *, writes: bool) -> StoreUnavailable:
    """Convert an error of redis-py to a `StoreUnavailable`.

    Args:
        error: the client's error.
        hint: the next step for an operator.
        writes: True if the command was meant to write.
    """
    if isinstance(error, NotConfirmedError | LostWriteError):
        return NotConfirmed()
    is_open = isinstance(error, MaybeDoneError)
    said = str(error).rstrip(".") if is_open else f"{type(error).__name__}: {error}"
    if writes and is_open:
        return Unanswered(said, hint)
    known = next((step for name, step in _HINTS.items() if said.startswith(name)), "")
    # Both Python and redis-py have a ConnectionError; redis-py's is no OSError.
    is_away = isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
    if is_away and not isinstance(error, NotMasterError):
        return StoreUnavailable(
            f"The store does not answer ({said}). Nothing was recorded; {known or hint}"
        )
    if writes and _IN_A_SCRIPT in str(error):
        return KeptInPart(said)
    return StoreUnavailable(
        f"The store did not keep this ({said}). Nothing was acknowledged; "
        f"{known or _WRITABLE_HINT}"
    )


class NotConfirmedError(RedisError):
    """The master has a write that no replica confirmed in time."""


class LostWriteError(RedisError):
    """A new master lacks a write that the old master had."""


async def confirmed(ask: Ask, commands: Sequence[Command], key: str) -> list[Reply]:
    """Run commands in one step; return their replies once a replica has the writes.

    Args:
        ask: sends commands as one batch on one connection.
        commands: commands to run; none to confirm earlier writes only.
        key: one of their keys; the marker gets its hash tag.

    Raises:
        NotConfirmedError: no replica confirmed in time; the write may still persist.
        LostWriteError: the write is lost and may be repeated.
    """
    mark = f"{key[: key.index('}') + 1]}:confirm:{secrets.token_hex(8)}"
    written: Command = ("SET", mark, "", "PX", _MARK_MS)
    wait: Command = ("WAIT", 1, WAIT_MS)
    *_, done, replicas = await ask([("MULTI",), *commands, written, ("EXEC",), wait])
    replies = cast("list[Reply]", done)[:-1]
    # Check errors first: a rejected command needs no confirmation.
    raise_first(replies)
    try:
        problem = await _problem(ask, written, wait, replicas)
    except (RedisError, OSError) as error:
        # The master has the writes, but the state of its replicas is unknown.
        raise NotConfirmedError from error
    if problem is not None:
        raise problem
    return replies


async def _problem(
    ask: Ask, written: Command, wait: Command, replicas: Reply
) -> type[RedisError] | None:
    """Return None once a replica has the marker, else the error to raise."""
    for _ in range(TRIES - 1):
        if replicas:
            return None
        is_kept, replicas = await ask([(*written, "XX"), wait])
        if is_kept is None:
            return LostWriteError
    return None if replicas else NotConfirmedError
