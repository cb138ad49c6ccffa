"""Let decisions that are evaluated by the same precedents take turns in this process.

Each of them changes what the others were evaluated by: of two hundred at once nearly
all would lose each comparison, and most would lose every attempt. Who has lost waits
for those before, and is then beaten only by other processes and by first attempts. This
is an optimization: what is written is compared in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from twokey.gateway.store.atomic_write import Write

LONGEST_S = 10.0
"""How long somebody waits for a turn; then they go on without one."""

TakeTurns: TypeAlias = Callable[[Write], Awaitable[None]]


class EffectTurns:
    """The turns of all effects; each lives as long as somebody has it or waits."""

    def __init__(self) -> None:
        # By the loop itself, as `group_commit.Rows` does.
        self._locks = WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[str, asyncio.Lock]
        ]()

    @asynccontextmanager
    async def turns(self) -> AsyncGenerator[TakeTurns]:
        """Give what waits for a turn at each effect that a lost change depended on.

        To be called once: who has some turns and asks for more may wait for somebody
        who waits for them. The turns end with the block.
        """
        async with AsyncExitStack() as held:
            yield partial(self._take, held)

    async def _take(self, held: AsyncExitStack, lost: Write) -> None:
        keys = {one.known.key for one in lost.inputs.values() if one.known}
        loop = asyncio.get_running_loop()
        locks = self._locks.setdefault(loop, WeakValueDictionary[str, asyncio.Lock]())
        # In one order for everybody, or two would wait for each other.
        turns = [locks.setdefault(key, asyncio.Lock()) for key in sorted(keys)]
        try:
            async with asyncio.timeout(LONGEST_S):
                for turn in turns:
                    await held.enter_async_context(turn)
        except TimeoutError:
            # A store that hangs must not hold up one after the other.
            await held.aclose()
