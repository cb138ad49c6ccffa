"""Redis client with typed replies and Twokey's own errors."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast

import redis.asyncio as aioredis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from twokey.gateway.errors import StoreUnavailable

Argument = str | bytes | int
Reply = object

_POOL_SIZE = 64
# As long as one command may take: a longer wait is a wait for a server that hangs.
_POOL_WAIT_S = 10.0
# More than the longest BLOCK of a reader, or each quiet moment would look like a broken
# connection.
_SOCKET_TIMEOUT_S = 10.0
_RECONNECTS = 3
_CLOSE_S = 5.0
_HINT = "check that Redis runs and that TWOKEY_REDIS_URL names it, then try again."
_EMBEDDED_HINT = (
    "the embedded Valkey is started again by itself; try again, and see 'valkey.log' "
    "in the data folder if it does not come back."
)


class _Client(Protocol):
    """What we use of redis-py's client, with types (its own are partial)."""

    async def execute_command(self, *words: Argument) -> Reply: ...


class _Pipeline(Protocol):
    """What we use of redis-py's pipeline, with types."""

    def execute_command(self, *words: Argument) -> object: ...

    async def execute(self) -> list[Reply]: ...


class Connection:
    """Connections to one server: a pool for each event loop that asks.

    An agent asks from several loops: the worker's, and the background loop that keeps
    claims alive and serves synchronous agents (`twokey.agent.bridge`). A pool belongs
    to one loop.

    A pool waits for a free connection instead of failing (a burst of clicks must
    not end in errors). Commands are tried again after a broken connection only where
    the caller made them safe to repeat: scripts check before they write.
    """

    def __init__(self, url: str, *, is_embedded: bool = False) -> None:
        self.url = url
        self._hint = _EMBEDDED_HINT if is_embedded else _HINT
        self._clients: dict[asyncio.AbstractEventLoop, aioredis.Redis] = {}

    async def close(self) -> None:
        """Close every connection, of the other loops as well."""
        here = asyncio.get_running_loop()
        # A copy: another thread may open a pool meanwhile.
        for loop, client in list(self._clients.items()):
            if loop is here:
                await _close(client)
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_close(client), loop)
                # That loop may stop before it comes to this; nobody waits for it for
                # ever.
                async with asyncio.timeout(_CLOSE_S):
                    await asyncio.wrap_future(closing)
        self._clients.clear()

    async def command(self, *words: Argument) -> Reply:
        """Run one command.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
        """
        with _answered(self._hint):
            return await self._client().execute_command(*words)

    async def now_ms(self) -> int:
        """Return the server's time, by which all that is kept is dated.

        Raises:
            StoreUnavailable: when the server did not answer.
        """
        return milliseconds(await self.command("TIME"))

    async def transaction(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands as one MULTI/EXEC, so that they see one state.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
        """
        with _answered(self._hint):
            # In MULTI: between the commands of a plain pipeline others' may run.
            async with self._here().pipeline(transaction=True) as opened:
                pipe = cast("_Pipeline", opened)
                for words in commands:
                    pipe.execute_command(*words)
                return await pipe.execute()

    async def evalsha(
        self, source: str, keys: Sequence[str], args: Sequence[Argument]
    ) -> list[Reply]:
        """Run a script by its digest; load it when the server does not know it.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
        """
        words: tuple[Argument, ...] = (len(keys), *keys, *args)
        client = self._client()
        with _answered(self._hint):
            try:
                sha = _digest(source)
                reply = await client.execute_command("EVALSHA", sha, *words)
            except NoScriptError:
                # After a flush or a failover. Safe to repeat: nothing was run.
                # By EVAL and not by SCRIPT LOAD with another EVALSHA: between these two
                # the server may forget it again.
                reply = await client.execute_command("EVAL", source, *words)
        return cast("list[Reply]", reply)

    def _client(self) -> _Client:
        return cast("_Client", self._here())

    def _here(self) -> aioredis.Redis:
        """Return the client of the loop that runs; open its pool at the first call."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            # Loops that have ended took their connections along.
            for ended in [one for one in list(self._clients) if one.is_closed()]:
                self._clients.pop(ended, None)
            found = self._clients[loop] = self._opened()
        return found

    def _opened(self) -> aioredis.Redis:
        pool = aioredis.BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] - redis-py types **kwargs partially
            self.url,
            max_connections=_POOL_SIZE,
            timeout=_POOL_WAIT_S,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_SOCKET_TIMEOUT_S,
            # Replies of RESP3 have other shapes (maps, doubles), and redis-py converts
            # them differently in its versions.
            protocol=2,
            # Three tries within half a second bridge a connection that broke. A longer
            # outage is the caller's to bridge, who knows how long its person or its
            # lease can wait.
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), _RECONNECTS),
        )
        return aioredis.Redis(connection_pool=pool)


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


async def _close(client: aioredis.Redis) -> None:
    await client.aclose()
    await client.connection_pool.disconnect()


@contextmanager
def _answered(hint: str) -> Generator[None]:
    """Turn the client's errors into ours, and keep a cancellation from getting lost.

    redis-py sends under ``asyncio.wait_for``, which before Python 3.12 forgets a
    cancellation that arrives together with the result (python/cpython#86296). A
    heartbeat that is stopped would then beat for ever.
    """
    before = _cancellations()
    try:
        yield
    except (RedisError, OSError) as error:
        raise _unavailable(error, hint) from error
    # Compared with the count before: a task that was cancelled once and goes on (a
    # clean-up) must not be cancelled again by each command.
    if _cancellations() > before:
        raise asyncio.CancelledError


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def text(reply: Reply) -> str:
    """Return a bulk reply as text; "" for none."""
    if reply is None:
        return ""
    # Strict: a text that is not UTF-8 is not ours, and raises ValueError for its
    # reader.
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


def _unavailable(error: Exception, hint: str) -> StoreUnavailable:
    kind = type(error).__name__
    # Two classes of the name ConnectionError: Python's, and redis-py's, which is no
    # OSError.
    if isinstance(error, ConnectionError | RedisConnectionError | OSError):
        return StoreUnavailable(
            f"The store does not answer ({kind}: {error}). Nothing was recorded; {hint}"
        )
    return StoreUnavailable(
        f"The store did not keep this ({kind}: {error}). Nothing was acknowledged; "
        "check that Redis is writable, then try again."
    )
