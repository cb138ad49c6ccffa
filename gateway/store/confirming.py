"""Confirm writes by replicas, so that a failover loses none that was acknowledged.

Theory of operation. Writes are followed, on their own connection, by a mark and by
``WAIT``: a replica that has the mark has all that its master wrote before. The mark is
a write in any case. A script that finds its work done writes nothing, and ``WAIT``
alone would then answer at once on a new connection, whatever replicas have (measured on
Valkey 9.1 and Redis 8.10; redis/redis#6393).

Writes and mark are one transaction. A server that has only a part of them, because
their slot moves to another one, runs none: so none runs twice, and none is confirmed by
a server that it is not on.

One ``WAIT`` is enough for all that was written before it. So while a few of them run,
what else is to be written to that shard gathers, and is sent as one transaction.

When no replica answers in time, the same mark is written again where it still is, and
waited for. Where it is not, another server has become the master and the writes are
lost: they have to run again. `WAIT` needs connections of its own, since it holds up its
connection: `twokey.gateway.store.node` keeps them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from redis.exceptions import RedisError

from twokey.gateway.store.multiplexed import Command, Reply, raise_first
from twokey.gateway.store.node import again

WAIT_MS = 500
"""How long one ``WAIT`` waits before it is tried again."""

TRIES = 3
"""How often it is waited for: Slack waits for 3 s altogether."""

AT_A_TIME = 4
"""How many first ``WAIT`` of a shard run at a time; further writes gather meanwhile."""

_MARK_MS = 30_000
"""How long a mark is kept: longer than all tries take."""

MOST = 64
"""Most writes of one transaction: nobody else is served while it runs."""

Ask = Callable[[Sequence[Command]], Awaitable[list[Reply]]]
"""Sends commands as one piece on one connection."""


class NotConfirmedError(RedisError):
    """A master has kept a write, and no replica has confirmed it in time."""


class LostWriteError(RedisError):
    """A master has kept a write, and another one that lacks it took its place."""


class Confirmer:
    """Writes of one event loop that replicas have to confirm.

    Args:
        ask: sends commands as one piece on one connection.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._gathering: dict[str, _Batch] = {}
        self._turns = defaultdict[str, asyncio.Semaphore](
            lambda: asyncio.Semaphore(AT_A_TIME)
        )
        self._running = set[asyncio.Task[None]]()

    async def run(self, commands: Sequence[Command], key: str) -> list[Reply]:
        """Run commands in one step; return their replies once a replica has them.

        Args:
            commands: what to run; none to have confirmed what is written already.
            key: one of their keys, whose hash tag the mark gets.

        Raises:
            NotConfirmedError: no replica did in time; it may be kept all the same.
            LostWriteError: it is lost and may be run again.
        """
        tag = key[: key.index("}") + 1]
        batch = self._gathering.get(tag)
        if batch is None or batch.size >= MOST:
            batch = self._gathering[tag] = _Batch()
            task = asyncio.create_task(self._send(tag, batch))
            # The loop itself keeps no task from being collected.
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        place = slice(len(batch.commands), len(batch.commands) + len(commands))
        batch.commands += commands
        batch.size += 1
        # Shielded: who gives up takes it from nobody else.
        written = await asyncio.shield(batch.written)
        if isinstance(written, Exception):
            raise again(written)
        replies = written[place]
        # Before it is waited for: what was refused need not be confirmed.
        raise_first(replies)
        if problem := await asyncio.shield(batch.confirmed):
            raise problem
        return replies

    async def _send(self, tag: str, batch: _Batch) -> None:
        """Write and confirm all that gathers until it is their turn."""
        mark = f"{tag}:confirm:{secrets.token_hex(8)}"
        written: Command = ("SET", mark, "", "PX", _MARK_MS)
        wait: Command = ("WAIT", 1, WAIT_MS)
        try:
            async with self._turns[tag]:
                # What comes from now on would come too late.
                if self._gathering.get(tag) is batch:
                    del self._gathering[tag]
                *_, done, replicas = await self._ask(
                    [("MULTI",), *batch.commands, written, ("EXEC",), wait]
                )
                batch.written.set_result(cast("list[Reply]", done))
            batch.confirmed.set_result(await self._problem(written, wait, replicas))
        # Whatever it is, such as a text of one of them that cannot be sent: the others
        # would else look as if they were cancelled.
        except Exception as error:  # noqa: BLE001 - raised for each of them
            batch.fail(error)
        finally:
            batch.end()

    async def _problem(
        self, written: Command, wait: Command, replicas: Reply
    ) -> type[RedisError] | None:
        """Return None once a replica has a mark, and else why it is not confirmed."""
        for _ in range(TRIES - 1):
            if replicas:
                return None
            is_kept, replicas = await self._ask([(*written, "XX"), wait])
            if is_kept is None:
                return LostWriteError
        return None if replicas else NotConfirmedError


class _Batch:
    """Writes that are sent and confirmed together, for all who wait for one of them."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.commands: list[Command] = []
        self.size = 0
        self.written: asyncio.Future[list[Reply] | Exception] = loop.create_future()
        self.confirmed: asyncio.Future[type[RedisError] | None] = loop.create_future()

    def fail(self, error: Exception) -> None:
        """Tell all that the master does not answer."""
        if self.written.done():
            # It has kept the writes, and does not say any more who else has them.
            self.confirmed.set_result(NotConfirmedError)
        else:
            self.written.set_result(error)

    def end(self) -> None:
        """Let nobody wait any more, also where the loop itself ends."""
        self.written.cancel()
        self.confirmed.cancel()
