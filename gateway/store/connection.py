"""Speak to one Redis-protocol server, with typed answers and our own errors."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
_POOL_WAIT_S = 10.0
_SOCKET_TIMEOUT_S = 10.0
_RECONNECTS = 3
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
    """A pool of connections to one server, for one event loop.

    The pool waits for a free connection instead of failing (a burst of clicks must
    not end in errors). Commands are tried again after a broken connection only where
    the caller made them safe to repeat: scripts check before they write.
    """

    def __init__(
        self, url: str, *, pool_size: int = _POOL_SIZE, is_embedded: bool = False
    ) -> None:
        self.url = url
        self._hint = _EMBEDDED_HINT if is_embedded else _HINT
        pool = aioredis.BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] - redis-py types **kwargs partially
            url,
            max_connections=pool_size,
            timeout=_POOL_WAIT_S,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_SOCKET_TIMEOUT_S,
            protocol=2,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), _RECONNECTS),
        )
        self.redis = aioredis.Redis(connection_pool=pool)
        self._client = cast("_Client", self.redis)

    async def close(self) -> None:
        """Close every connection."""
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()

    async def command(self, *words: Argument) -> Reply:
        """Run one command.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
        """
        with _answered(self._hint):
            return await self._client.execute_command(*words)

    async def together(self, *commands: Sequence[Argument]) -> list[Reply]:
        """Run commands as one MULTI/EXEC, so that they see one state.

        Raises:
            StoreUnavailable: when the server did not answer or refused one.
        """
        with _answered(self._hint):
            async with self.redis.pipeline(transaction=True) as opened:
                pipe = cast("_Pipeline", opened)
                for words in commands:
                    pipe.execute_command(*words)
                return await pipe.execute()

    async def evalsha(
        self, sha: str, source: str, keys: Sequence[str], args: Sequence[Argument]
    ) -> list[Reply]:
        """Run a script by its digest; load it when the server does not know it.

        Raises:
            StoreUnavailable: when the server did not answer or refused it.
        """
        words: tuple[Argument, ...] = (len(keys), *keys, *args)
        with _answered(self._hint):
            try:
                reply = await self._client.execute_command("EVALSHA", sha, *words)
            except NoScriptError:
                # After a flush or a failover. Safe to repeat: nothing was run.
                reply = await self._client.execute_command("EVAL", source, *words)
        return cast("list[Reply]", reply)


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
    if _cancellations() > before:
        raise asyncio.CancelledError


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def text(reply: Reply) -> str:
    """Return a bulk reply as text; "" for none."""
    if reply is None:
        return ""
    return reply.decode("utf-8") if isinstance(reply, bytes) else str(reply)


def number(reply: Reply) -> int:
    """Return a reply as an integer; 0 for none."""
    if reply is None:
        return 0
    return int(reply) if isinstance(reply, bytes | int | str) else 0


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
    if isinstance(error, ConnectionError | RedisConnectionError | OSError):
        return StoreUnavailable(
            f"The store does not answer ({kind}: {error}). Nothing was recorded; {hint}"
        )
    return StoreUnavailable(
        f"The store did not keep this ({kind}: {error}). Nothing was acknowledged; "
        "check that Redis is writable, then try again."
    )
