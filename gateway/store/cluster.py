"""A cluster: each command goes to the master of its key's slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import cast

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from twokey.gateway.store.agreement import ASK_S, Watch, majority
from twokey.gateway.store.multiplexed import Argument, Command, Reply
from twokey.gateway.store.node import Node, open_connection
from twokey.gateway.store.server_address import Place, ServerAddress

_MAX_REDIRECTS = 5
_SECOND = frozenset({"XGROUP", "XINFO", "OBJECT", "MEMORY"})
_SCRIPTS = frozenset({"EVAL", "EVALSHA"})
_STREAMS = frozenset({"XREAD", "XREADGROUP"})

Slots = tuple[tuple[int, int, Place], ...]
"""Ranges of slots, with where their master is."""


class Cluster:
    """All masters of a cluster, as one event loop sees them.

    Which slots each has is asked at first, after trouble, and once a second: nobody
    goes on waiting for a master that hangs and was replaced.

    Args:
        seeds: nodes to ask for the others.
    """

    def __init__(self, seeds: Sequence[ServerAddress]) -> None:
        self._template = seeds[0]
        self._seeds = {(one.host, one.port) for one in seeds}
        self._nodes: dict[Place, Node] = {}
        # Apart from these: to be asked, a node need not be a master any more.
        self._asked = {place: self._made(place) for place in self._seeds}
        self._slots: Slots = ()
        self._moved: dict[int, Place] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._watch = Watch(self._refresh)
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._is_closed

    async def ask(self, commands: Sequence[Command], deadline: float) -> list[Reply]:
        """Ask the master of the slot of the first key, see `Node.ask`.

        What a slot's old and new master may both be asked runs once: commands that are
        redirected are one command, or one MULTI/EXEC, of which none has run then.
        """
        slot = slot_of(commands)
        if not self._slots:
            await self._refreshed(deadline)
        place = self._owner(slot)
        before: Sequence[Command] = ()
        for _ in range(_MAX_REDIRECTS):
            replies = await self._ask_at(place, [*before, *commands], deadline)
            error = next((one for one in replies if isinstance(one, RedisError)), None)
            if isinstance(error, MovedError):
                place, before = _named(error, place), ()
                self._moved[slot] = place
            elif isinstance(error, AskError) and not _waits(commands):
                # The slot moves, and this key is at its next master already.
                place, before = _named(error, place), [("ASKING",)]
            elif isinstance(error, AskError | TryAgainError | ClusterDownError):
                # The new master of a slot that moves confirms what it has: not what
                # was written beside it, at the old one.
                await self._refreshed(deadline)
                raise RedisConnectionError(str(error))
            else:
                return replies[len(before) :]
        raise RedisConnectionError("The nodes of the cluster disagree about a slot.")

    async def masters(self, deadline: float) -> dict[str, Node]:
        """Return every master by its address."""
        await self._refreshed(deadline)
        return {
            f"{host}:{port}": self._node_at((host, port))
            for host, port in sorted({place for _, _, place in self._slots})
        }

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        self._watch.stop()
        if self._refreshing:
            self._refreshing.cancel()
        for node in [*self._nodes.values(), *self._asked.values()]:
            await node.close()

    def _owner(self, slot: int) -> Place:
        if slot in self._moved:
            return self._moved[slot]
        for first, last, place in self._slots:
            if first <= slot <= last:
                return place
        raise RedisConnectionError(f"No node of the cluster has slot {slot}.")

    def _node_at(self, place: Place) -> Node:
        if place not in self._nodes:
            self._nodes[place] = self._made(place)
        return self._nodes[place]

    def _made(self, place: Place) -> Node:
        address = replace(self._template, host=place[0], port=place[1])
        return Node(partial(open_connection, address))

    async def _ask_at(
        self, place: Place, commands: Sequence[Command], deadline: float
    ) -> list[Reply]:
        try:
            return await self._node_at(place).ask(commands, deadline)
        except (RedisConnectionError, RedisTimeoutError):
            # Before the next try: by then another node may have the slot.
            await self._refreshed(deadline)
            raise

    async def _refreshed(self, deadline: float) -> None:
        """Ask who has which slots, once for all who wait for it."""
        if self._is_closed:
            raise RedisConnectionError("The connection was closed.")
        self._watch.start()
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            # Looked at in any case: else asyncio would report what nobody saw.
            self._refreshing.add_done_callback(_look_at_error)
        refreshing = self._refreshing
        await asyncio.wait([refreshing], timeout=max(0.0, deadline - _now()))
        if refreshing.done() and not refreshing.cancelled():
            error = refreshing.exception()
            if error and not self._slots:
                raise RedisConnectionError(str(error))

    async def _refresh(self) -> None:
        slots = await majority(map(self._said_by, list(self._asked.items())))
        self._moved.clear()
        if slots == self._slots:
            return
        self._slots = slots
        masters = {place for _, _, place in slots}
        # One that was replaced gets no more commands, and may owe replies for ever.
        await _close_others(self._nodes, masters)
        await _close_others(self._asked, masters | self._seeds)
        for place in masters - self._asked.keys():
            self._asked[place] = self._made(place)

    async def _said_by(self, asked: tuple[Place, Node]) -> Slots:
        (host, _), node = asked
        [said] = await node.ask([("CLUSTER", "SLOTS")], _now() + ASK_S)
        if isinstance(said, Exception):
            raise said
        rows = cast("list[list[list[bytes | int]]]", said)
        return tuple(sorted(_row(row, host) for row in rows))


def slot_of(commands: Iterable[Command]) -> int:
    """Return the slot of the first key in commands; any slot when there is none."""
    key = next((key for words in commands if (key := _key(words)) is not None), "")
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _waits(commands: Iterable[Command]) -> bool:
    return any(words[0] == "WAIT" for words in commands)


def _key(words: Command) -> Argument | None:
    """Return the first key of a command, or its first argument when it has none."""
    name = words[0]
    if name in _SCRIPTS:
        return words[3] if int(words[2]) else None
    if name in _STREAMS:
        return words[words.index("STREAMS") + 1]
    at = 2 if name in _SECOND else 1
    return words[at] if len(words) > at else None


def _row(row: list[list[bytes | int]], asked_host: str) -> tuple[int, int, Place]:
    first, last, master = cast("tuple[int, int, list[bytes | int]]", row[:3])
    host = cast("bytes | None", master[0])
    # A node that does not know its own address says none: it is where it was asked.
    return first, last, (host.decode() if host else asked_host, int(master[1]))


def _named(error: MovedError | AskError, asked: Place) -> Place:
    # redis-py types these partially.
    host, port = cast("Place", (error.host, error.port))  # pyright: ignore[reportUnknownMemberType]
    return host or asked[0], port


async def _close_others(nodes: dict[Place, Node], kept: AbstractSet[Place]) -> None:
    # All are taken out first: another refresh may look while one is closed.
    others = [nodes.pop(place) for place in nodes.keys() - kept]
    for node in others:
        await node.close()


def _look_at_error(refreshing: asyncio.Task[None]) -> None:
    if not refreshing.cancelled():
        refreshing.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
