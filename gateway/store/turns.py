"""Let changes of this process that compete with each other take turns.

Changes of one approval go one after the other, and each is computed from what the one
before it wrote, without another reading. Two hundred at once would otherwise nearly all
lose each comparison, and most would run out of attempts.

Changes of several approvals compete when their calls have the same effect, so that each
changes the precedents of the others. Such a change waits for the others only after it
lost an attempt. Turns only save attempts: every write is still compared with what was
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from keyturn.gateway.store.atomic_write import Loaded, WriteMany

LONGEST_S = 10.0
"""How long a change waits for its turn; then it goes on without one."""


class SharedTurn(asyncio.Lock):
    """The turn of an approval or of an effect, and the last write in it."""

    written: Loaded | None = None


class Turn(NamedTuple):
    """The turn of one change.

    Attributes:
        after: by approval, what the change before it wrote.
        pass_on: notes what this change wrote, for the changes after it.
        wait_for_effects: waits also for the effects of a lost change. Call it once: a
            change that holds some locks and asks for more could wait for a change that
            waits for it.
    """

    after: Mapping[str, Loaded]
    pass_on: Callable[[Iterable[Loaded]], None]
    wait_for_effects: Callable[[WriteMany], Awaitable[None]]


class Turns:
    """Locks by approval and by effect; each lives as long as it is used."""

    def __init__(self) -> None:
        # By event loop: threads share a store, and a lock belongs to one loop.
        self._locks = WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, SharedTurn]
        ]()

    @asynccontextmanager
    async def of(self, approval_ids: Iterable[str]) -> AsyncGenerator[Turn]:
        """Wait for the turn of each of these approvals; it ends with the block."""
        async with AsyncExitStack() as held:
            own = await self._take(held, approval_ids)

            def pass_on(written: Iterable[Loaded]) -> None:
                for one in written:
                    own[one.approval.id].written = one

            after = {key: one.written for key, one in own.items() if one.written}
            yield Turn(after, pass_on, partial(self._take_effects, held))

    async def _take_effects(self, held: AsyncExitStack, lost: WriteMany) -> None:
        known = (one.known for each in lost.writes for one in each.inputs.values())
        await self._take(held, {one.key for one in known if one})

    async def _take(
        self, held: AsyncExitStack, names: Iterable[str]
    ) -> dict[str, SharedTurn]:
        loop = asyncio.get_running_loop()
        locks = self._locks.setdefault(loop, WeakValueDictionary[str, SharedTurn]())
        # In one order for everybody, or two would wait for each other.
        turns = {name: locks.setdefault(name, SharedTurn()) for name in sorted(names)}
        try:
            async with asyncio.timeout(LONGEST_S):
                for turn in turns.values():
                    await held.enter_async_context(turn)
        except TimeoutError:
            # A store that hangs must not hold up one change after the other.
            await held.aclose()
        return turns
