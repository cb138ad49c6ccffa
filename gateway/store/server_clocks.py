"""Know the time of a server between two answers of it."""

from __future__ import annotations

from collections.abc import Callable

from twokey.gateway.clock import now_s


class ServerClocks:
    """What the clocks of servers say, as far as this process knows.

    Each shard has its own: in a cluster another server may have it.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = now_s) -> None:
        self._clock = clock
        self._ahead_ms: dict[str, float] = {}

    def saw(self, shard: str, now_ms: int) -> None:
        """Note what the clock of a shard says at this moment."""
        self._ahead_ms[shard] = now_ms - 1000 * self._clock()

    def now_ms(self, shard: str) -> int:
        """Return what it says now; 0 where no answer has told yet."""
        ahead_ms = self._ahead_ms.get(shard)
        return 0 if ahead_ms is None else int(ahead_ms + 1000 * self._clock())
