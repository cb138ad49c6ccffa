"""Ask several servers at once, and believe what most of them say."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

ASK_S = 1.0
"""How long the answer of one that is asked where the master is may take."""

_EVERY_S = 1.0

T = TypeVar("T", bound=Hashable)


async def majority(asked: Iterable[Awaitable[T]]) -> T:
    """Return what more than half of those asked say, or else what most of them say.

    One that is cut off may tell old news.

    Raises:
        ConnectionError: of redis-py; none of them answers.
    """
    tasks = [asyncio.ensure_future(one) for one in asked]
    said: Counter[T] = Counter()
    problem: BaseException | None = None
    try:
        for next_one in asyncio.as_completed(tasks, timeout=ASK_S):
            try:
                answer = await next_one
            except (RedisError, OSError) as error:
                # A TimeoutError is one, too: then all the others are late.
                problem = error
                continue
            said[answer] += 1
            if said[answer] > len(tasks) / 2:
                return answer
    finally:
        for task in tasks:
            task.cancel()
        # Waited for: an error that nobody asked for would be reported by asyncio.
        await asyncio.gather(*tasks, return_exceptions=True)
    if not said:
        raise RedisConnectionError(f"No server says where the master is: {problem}")
    return said.most_common(1)[0][0]


class Watch:
    """Look after something once a second, until it is stopped or its loop ends."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._timer is None:
            # A timer and not a task that sleeps: a loop that ends forgets it.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_EVERY_S, self._begin)

    def stop(self) -> None:
        """Look no more."""
        for one in (self._timer, self._task):
            if one:
                one.cancel()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._once())

    async def _once(self) -> None:
        try:
            await self._look()
        except (RedisError, OSError):
            pass  # nobody answers: who has something to ask is told
        except Exception as error:  # noqa: BLE001 - it is looked after all the same
            log_failure(logger, error, "watch.failed")
        self._timer = None
        self.start()
