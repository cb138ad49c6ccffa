"""Confirm writes by replicas, so that a failover loses none that was acknowledged.

Theory of operation. A write is followed, on its own connection, by a mark and by
``WAIT``: a replica that has the mark has all that its master wrote before. The mark is
a write in any case. A script that finds its work done writes nothing, and ``WAIT``
alone would then answer at once on a new connection, whatever replicas have (measured on
Valkey 9.1 and Redis 8.10; redis/redis#6393).

When no replica answers in time, the same mark is written again where it still is, and
waited for. Where it is not, another server has become the master and the write is lost:
the script has to run again. `WAIT` needs connections of its own, since it holds up its
connection: `twokey.gateway.store.node` keeps them.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence

from redis.exceptions import RedisError

from twokey.gateway.store.multiplexed import Command, Reply

WAIT_MS = 500
"""How long one ``WAIT`` waits before it is tried again."""

TRIES = 3
"""How often it is waited for: Slack waits for 3 s altogether."""

_MARK_MS = 30_000
"""How long a mark is kept: longer than all tries take."""


class NotConfirmedError(RedisError):
    """A master has kept a write, and no replica has confirmed it in time."""


class LostWriteError(RedisError):
    """A master has kept a write, and another one that lacks it took its place."""


async def ask_confirmed(
    ask: Callable[[Sequence[Command]], Awaitable[list[Reply]]],
    words: Command,
    key: str,
    replicas: int,
) -> Reply:
    """Run one writing command and return its reply once replicas have what it wrote.

    Args:
        ask: sends commands as one piece on one connection.
        words: the command.
        key: one of its keys, whose hash tag the mark gets.
        replicas: how many have to confirm it.

    Raises:
        NotConfirmedError: too few did in time; it may be kept all the same.
        LostWriteError: it is lost and may be run again.
    """
    tag = key[: key.index("}") + 1]
    mark = f"{tag}:confirm:{secrets.token_hex(8)}"
    wait: Command = ("WAIT", replicas, WAIT_MS)
    written: Command = ("SET", mark, "", "PX", _MARK_MS)
    reply, _, confirmed = await ask([words, written, wait])
    for _ in range(TRIES - 1):
        if isinstance(confirmed, int) and confirmed >= replicas:
            return reply
        is_kept, confirmed = await ask([(*written, "XX"), wait])
        if is_kept is None:
            raise LostWriteError("the write was lost in a failover")
    if isinstance(confirmed, int) and confirmed >= replicas:
        return reply
    raise NotConfirmedError("no replica has confirmed the write")
