"""Run several coroutines in turn at the store, one round trip at a time.

Work between two round trips is not visible to others, so an interleaving is an order of
round trips. Scripts and transactions take turns. Single commands only read values that
decide nothing, and belong to the round trip before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextvars import ContextVar

import pytest

from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.records.approvals import Turn, Turns

Choose = Callable[[int], int]
"""Given how many wait, say which of them goes next."""

_ACTOR: ContextVar[int | None] = ContextVar("actor", default=None)
_PATIENCE_S = 60.0


class Interleaver:
    """Intercepts every round trip of one connection while actors run.

    Args:
        conn: the connection whose round trips take turns.
        patch: restores everything afterwards.
    """

    def __init__(self, conn: Connection, patch: pytest.MonkeyPatch) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._moved = asyncio.Event()
        self.steps = 0
        for name in ("transaction", "evalsha"):
            patch.setattr(conn, name, self._before(getattr(conn, name)))
        # Each actor represents a process: changes take turns inside one process only.
        patch.setattr(Turns, "take", self._no_turn)

    @staticmethod
    async def _no_turn(
        _turns: Turns, _held: object, names: Iterable[str]
    ) -> dict[str, Turn]:
        return {name: Turn() for name in names}

    async def run(
        self, actors: Sequence[Coroutine[object, object, object]], choose: Choose
    ) -> list[object]:
        """Run all actors to their end in the order that is chosen."""
        tasks = [
            asyncio.create_task(self._as(number, actor))
            for number, actor in enumerate(actors)
        ]
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                await self._until_all_rest(tasks)
                if not self._waiting:
                    return [task.result() for task in tasks]
                ready = sorted(self._waiting)
                self.steps += 1
                self._waiting.pop(ready[choose(len(ready))]).set_result(None)

    async def _as(
        self, number: int, actor: Coroutine[object, object, object]
    ) -> object:
        _ACTOR.set(number)
        try:
            return await actor
        finally:
            self._moved.set()

    async def _until_all_rest(self, tasks: Sequence[asyncio.Task[object]]) -> None:
        while True:
            self._moved.clear()
            resting = (
                task.done() or number in self._waiting
                for number, task in enumerate(tasks)
            )
            if all(resting):
                return
            await self._moved.wait()
            # An actor reports its end a moment before its task is done.
            await asyncio.sleep(0)

    def _before(
        self, call: Callable[..., Coroutine[object, object, object]]
    ) -> Callable[..., Coroutine[object, object, object]]:
        async def in_turn(*words: object, **options: object) -> object:
            number = _ACTOR.get()
            if number is not None:
                turn = asyncio.get_running_loop().create_future()
                self._waiting[number] = turn
                self._moved.set()
                await turn
            return await call(*words, **options)

        return in_turn


def every_order() -> Iterator[Choose]:
    """Yield choosers, one a run, until every order of every run was taken."""
    path: list[tuple[int, int]] = []

    def follow() -> Choose:
        at = 0

        def choose(width: int) -> int:
            nonlocal at
            if at == len(path):
                path.append((0, width))
            choice, seen = path[at]
            assert seen == width, "the same choices led somewhere else"
            at += 1
            return choice

        return choose

    while True:
        yield follow()
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        choice, width = path[-1]
        path[-1] = (choice + 1, width)
