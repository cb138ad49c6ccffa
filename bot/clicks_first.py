"""Let what Slack waits for go before what nobody waits for.

Slack waits three seconds for the answer to a click and tells the person of a failure
after that; a card that shows the decision a moment later harms nobody. Both happen in
one event loop, and drawing one card takes longer than answering several clicks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

QUIET_S = 0.01
"""How long nothing has to be answered before cards are drawn."""

ELSEWHERE_S = 0.05
"""The same where other processes answer: what they did is read from the outbox, and is
some milliseconds old by then. So often is looked there for more of it."""

AT_MOST_S = 1.0
"""How long cards wait at most. From then on they are drawn beside the answers, until
there is a quiet moment: a load that never pauses must not keep cards as they were."""

Look = Callable[[], Awaitable[bool]]
"""Returns whether somebody clicked at another process since it was asked last."""

Gather = Callable[[Look], Awaitable[None]]
"""Waits until there is time to read what happened."""


class ClicksFirst:
    """What one process has to answer, and when there is time for something else.

    Args:
        clock: seconds, never going backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answering = 0
        self._quiet_at = clock()
        self._late_at: float | None = None
        # One for all: each click uses it, and it has nothing of its own.
        self._counting = _Counting(self._began, self._ended)

    def answering(self) -> AbstractContextManager[None]:
        """Count a request of Slack as unanswered while the block runs."""
        return self._counting

    def _began(self) -> None:
        self._answering += 1

    def _ended(self) -> None:
        self._answering -= 1
        self._quiet_at = self._clock() + QUIET_S

    def answered_elsewhere(self) -> None:
        """Note that another process answered a click; there may be more of them.

        It has processors of its own, or shares them: nobody knows here.
        """
        self._quiet_at = self._clock() + ELSEWHERE_S

    def wait_s(self) -> float:
        """Return how long other work has to wait before it asks again; 0: no more."""
        now = self._clock()
        quiet_at = now + QUIET_S if self._answering else self._quiet_at
        if now >= quiet_at:
            self._late_at = None
            return 0.0
        if self._late_at is None:
            self._late_at = now + AT_MOST_S
        return max(0.0, min(self._late_at, quiet_at) - now)

    async def quiet(self) -> None:
        """Wait until there is time for something else."""
        while wait_s := self.wait_s():  # noqa: ASYNC110 - an event would be set every click
            await asyncio.sleep(wait_s)

    async def gather(self, look: Look) -> None:
        """Wait until nobody clicks at other processes; then read what they did.

        To read and check events takes more time than to see that there are some.
        """
        while wait_s := self.wait_s():
            await asyncio.sleep(wait_s)
            if await look():
                self.answered_elsewhere()


class _Counting:
    """Tells of its blocks when they begin and when they end."""

    def __init__(self, began: Callable[[], None], ended: Callable[[], None]) -> None:
        self._began, self._ended = began, ended

    def __enter__(self) -> None:
        self._began()

    def __exit__(self, *_raised: object) -> None:
        self._ended()


async def at_once(*_asked: object) -> None:
    """Wait for nothing, where nobody is answered."""
