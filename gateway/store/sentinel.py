"""The master of a Sentinel set: found anew for each connection, left when replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError

from twokey.gateway.store.agreement import ASK_S, Watch, majority
from twokey.gateway.store.multiplexed import Command, MultiplexedConnection, Reply
from twokey.gateway.store.node import Node, open_connection
from twokey.gateway.store.server_address import Place, SentinelAddress


class SentinelMaster:
    """The server that the Sentinels call the master, as one event loop sees it.

    Once a second they are asked, so that nobody goes on waiting for a master that hangs
    and was replaced.
    """

    def __init__(self, address: SentinelAddress) -> None:
        self._address = address
        self._sentinels = [
            Node(partial(open_connection, one)) for one in address.sentinels
        ]
        self._node = Node(self._connect)
        self._place: Place | None = None
        self._watch = Watch(self._look)

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._node.is_closed

    async def ask(self, commands: Sequence[Command], deadline: float) -> list[Reply]:
        """Ask the master, see `Node.ask`."""
        replies = await self._node.ask(commands, deadline)
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            # It was made a replica, and nothing was written.
            self._node.drop()
            raise RedisConnectionError("This server is no master any more.")
        return replies

    async def masters(self, deadline: float) -> dict[str, Node]:
        """Return the one master by its address."""
        del deadline
        host, port = self._place or await self._resolve()
        return {f"{host}:{port}": self._node}

    async def close(self) -> None:
        """Close every connection."""
        self._watch.stop()
        for node in (self._node, *self._sentinels):
            await node.close()

    async def _connect(self) -> MultiplexedConnection:
        self._watch.start()
        place = await self._resolve()
        there = replace(self._address.master, host=place[0], port=place[1])
        made = await open_connection(there)
        try:
            await _ensure_master(made)
        except BaseException:
            made.close()
            raise
        if self._place not in {None, place}:
            # The others are still with the master that was replaced: what is read by
            # them would be confirmed by the new one, which may lack it.
            self._node.drop()
        self._place = place
        return made

    async def _resolve(self) -> Place:
        return await majority(self._said_by(one) for one in self._sentinels)

    async def _said_by(self, sentinel: Node) -> Place:
        deadline = asyncio.get_running_loop().time() + ASK_S
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.name)
        [said] = await sentinel.ask([words], deadline)
        if isinstance(said, Exception):
            raise said
        if said is None:
            raise RedisConnectionError(f"it knows no master {self._address.name!r}")
        host, port = cast("tuple[bytes, bytes]", said)
        return host.decode(), int(port)

    async def _look(self) -> None:
        place = await self._resolve()
        if self._place and place != self._place:
            self._place = None
            self._node.drop()


async def _ensure_master(made: MultiplexedConnection) -> None:
    deadline = asyncio.get_running_loop().time() + ASK_S
    [role] = await made.ask([("ROLE",)], deadline)
    # A Sentinel may name one that is no master yet, or not any more.
    if not isinstance(role, list) or cast("list[Reply]", role)[0] != b"master":
        raise RedisConnectionError(f"The server is no master: {role!r}"[:200])
