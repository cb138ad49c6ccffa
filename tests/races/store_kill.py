"""Kill the store at a chosen place of a decision: before a round trip, or in it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterable

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection

_SENT_AFTER = 3
"""Turns of the event loop after which a request is on its way: it is written at the end
of the turn in which it is made."""


class StoreKill:
    """Kills a store once, at one point of the traffic over a connection.

    Args:
        conn: the connection.
        patch: restores everything afterwards.
        pid: of the store.
        place: an even number 2n is before round trip n; 2n+1 is after it was sent.
    """

    def __init__(
        self, conn: Connection, patch: pytest.MonkeyPatch, pid: int, place: int
    ) -> None:
        self._pid = pid
        self._before, self._is_sent = divmod(place, 2)
        self.is_done = False
        for name in ("transaction", "evalsha"):
            patch.setattr(conn, name, self._around(getattr(conn, name)))

    def _around(
        self, call: Callable[..., Coroutine[object, object, object]]
    ) -> Callable[..., Coroutine[object, object, object]]:
        async def counted(*words: object, **options: object) -> object:
            self._before -= 1
            if self._before != -1:
                return await call(*words, **options)
            asking = asyncio.ensure_future(call(*words, **options))
            for _ in range(_SENT_AFTER * self._is_sent):
                await asyncio.sleep(0)
            os.kill(self._pid, signal.SIGKILL)
            self.is_done = True
            return await asking

        return counted


async def until_killed(
    conn: Connection,
    decisions: Iterable[Coroutine[object, object, str]],
    pid: int,
    place: int,
) -> tuple[list[str], bool]:
    """Decide one after the other; kill the store at a place of the second.

    Returns:
        The outcomes, and whether the second had such a place. Its outcome may be known
        all the same: the engine starts the store again, and the connection asks again.
    """
    outcomes, is_cut = list[str](), False
    for number, decision in enumerate(decisions):
        with pytest.MonkeyPatch.context() as patch:
            kill = StoreKill(conn, patch, pid, place) if number == 1 else None
            try:
                outcomes.append(await decision)
            except StoreUnavailable:
                outcomes.append("unknown")
            is_cut = is_cut or (kill is not None and kill.is_done)
    return outcomes, is_cut
