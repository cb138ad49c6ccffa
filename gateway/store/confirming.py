"""Confirm writes by replicas, so that a failover loses none that was acknowledged.

Theory of operation. Writes are followed, on their own connection, by a mark and by
``WAIT``: a replica that has the mark has all that its master wrote before. The mark is
a write in any case. A script that finds its work done writes nothing, and ``WAIT``
alone would then answer at once on a new connection, whatever replicas have (measured on
Valkey 9.1 and Redis 8.10; redis/redis#6393).

Writes and mark are one transaction. A server that has only a part of them, because
their slot moves to another one, runs none: so none runs twice, and none is confirmed by
a server that it is not on.

When no replica answers in time, the same mark is written again where it still is, and
waited for. Where it is not, another server has become the master and the writes are
lost: they have to run again.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from redis.exceptions import RedisError

from keyturn.gateway.store.servers import Command, Reply, raise_first

WAIT_MS = 500
"""How long one ``WAIT`` waits before it is tried again."""

TRIES = 3
"""How often it is waited for: Slack waits for 3 s altogether."""

_MARK_MS = 30_000
"""How long a mark is kept: longer than all tries take."""

Ask = Callable[[Sequence[Command]], Awaitable[list[Reply]]]
"""Sends commands as one piece on one connection."""


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
