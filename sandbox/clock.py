"""Clock of the sandbox; a test may move it forward."""

import asyncio
import time
from contextlib import suppress


class Clock:
    """The machine's clock, plus the seconds that a test has added.

    Triggers, response URLs, rate limits, message timestamps and the app's three seconds
    to answer all use this clock, so a test never has to sleep.
    """

    def __init__(self) -> None:
        self._added = 0.0
        self._moved = asyncio.Event()
        self._last_ts = 0
        self._waits: list[float] = []

    @property
    def waits(self) -> list[float]:
        """Return the remaining seconds of each waiter on this clock.

        A test should advance the clock only once its waiters exist: a later wait counts
        from the new time.
        """
        now = self.now()
        return [deadline - now for deadline in self._waits]

    def now(self) -> float:
        """Return the current time as Unix seconds."""
        return time.time() + self._added  # noqa: TID251 - simulated Slack time

    def advance(self, seconds: float) -> None:
        """Advance the clock and notify every waiter."""
        if seconds < 0:
            raise ValueError(f"Time cannot go back: advance({seconds!r}).")
        self._added += seconds
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` of this clock have passed."""
        deadline = self.now() + seconds
        self._waits.append(deadline)
        try:
            while (left := deadline - self.now()) > 0:
                moved = self._moved
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await moved.wait()
        finally:
            self._waits.remove(deadline)

    def next_ts(self) -> str:
        """Return a message timestamp: seconds.microseconds, unique and increasing."""
        self._last_ts = max(int(self.now() * 1_000_000), self._last_ts + 1)
        seconds, micros = divmod(self._last_ts, 1_000_000)
        return f"{seconds}.{micros:06d}"

    def not_before(self, ts: str) -> None:
        """Make every later timestamp greater than `ts` (used after a restart)."""
        seconds, _, micros = ts.partition(".")
        self._last_ts = max(self._last_ts, int(seconds) * 1_000_000 + int(micros))
