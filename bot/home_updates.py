"""Serialize and coalesce updates of each Home tab, within Slack's rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from twokey.bot.limits import PUBLISH, Limits

RESERVED = 10
"""Calls of the rate limit that are left to people who open their tab now."""

_LONGEST_WAIT_S = 30.0


@dataclass(slots=True)
class HomeUpdates:
    """The Home tabs that this process publishes.

    Attributes:
        clock: seconds, never going backwards.
        changed: set when something happened that may change an open tab.
    """

    clock: Callable[[], float]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    limits: Limits = field(init=False)
    _asked: set[str] = field(default_factory=set[str])
    # A lock lives as long as somebody holds it or waits for it.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )

    def __post_init__(self) -> None:
        """Begin with all calls that Slack takes."""
        self.limits = Limits(self.clock)

    @asynccontextmanager
    async def next_update(self, user: str) -> AsyncGenerator[bool]:
        """Wait for a person's next update; give False when a later one shows it all.

        Of several that wait for one person the first one begins after all of them were
        asked for, so it shows what each of them would.
        """
        if user in self._asked:
            yield False
            return
        self._asked.add(user)
        lock = self._locks.setdefault(user, asyncio.Lock())
        try:
            await lock.acquire()
        finally:
            self._asked.discard(user)
        try:
            yield True
        finally:
            lock.release()

    async def wait_for_limit(self) -> None:
        """Wait until one more tab may be published, some seconds at most."""
        while True:
            wait_s = self.limits.take(PUBLISH)
            if not wait_s:
                return
            await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))

    def may_publish(self) -> bool:
        """Take a call for a tab that nobody asked for now, if there are enough."""
        return self.limits.take(PUBLISH, keep=RESERVED) == 0
