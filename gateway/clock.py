"""Clocks: elapsed time, and the time of a remote clock.

The store decides time. Checks that cannot query it each time, such as the five minutes
of a Slack signature, use the store's last answer plus the time elapsed since. They are
correct even if this machine's clock is wrong, or is set while the process runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

MOST_OFFSET_S = 5.0
"""Largest accepted difference of two clocks; people read times on cards."""

_CLOSE_S, _MOST_S = 0.5, 5.0
_OLD_S = 60.0

# Not `time.monotonic`: on Linux it stops while the machine is suspended, and old
# answers would pass for new ones afterwards. Both clocks continue while a process is
# stopped (SIGSTOP). On macOS CLOCK_MONOTONIC counts suspension.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return seconds of a clock that never goes back and never stops."""
    return time.clock_gettime(_CLOCK)


class _Reading(NamedTuple):
    """The remote clock's time, the local time of the reading, and its accuracy."""

    other_s: float
    at_s: float
    within_s: float


class ReferenceClock:
    """A remote clock, estimated from its last answer.

    Args:
        elapsed_s: a clock of this machine that never goes back and cannot be set.
        wall_s: Unix seconds by this machine.
    """

    def __init__(
        self,
        *,
        elapsed_s: Callable[[], float] = now_s,
        wall_s: Callable[[], float] = time.time,  # noqa: TID251 - the clock to compare
    ) -> None:
        self._elapsed_s = elapsed_s
        self._wall_s = wall_s
        self._last: _Reading | None = None

    def asking(self) -> float:
        """Return the time before a question, for `answered`."""
        return self._elapsed_s()

    def answered(self, other_s: float, asked_s: float, within_s: float = 0.0) -> None:
        """Record an answer.

        Args:
            other_s: Unix seconds by the remote clock.
            asked_s: result of `asking` before the question.
            within_s: accuracy of the answer itself.
        """
        now_s, last = self._elapsed_s(), self._last
        within_s += (now_s - asked_s) / 2
        # A slow answer is inaccurate; it counts only once the last one is old. After a
        # stop of this process in between, an answer is too inaccurate to count.
        is_better = last is None or within_s <= max(_CLOSE_S, last.within_s)
        is_old = last is not None and now_s - last.at_s > _OLD_S
        if is_better or (is_old and within_s <= _MOST_S):
            self._last = _Reading(other_s, (asked_s + now_s) / 2, within_s)

    def now_s(self) -> float:
        """Return the remote time in Unix seconds; this machine's without an answer.

        A slow first answer only limits the time: this machine's clock is the better
        guess between these limits.
        """
        wall_s, last = self._wall_s(), self._last
        if last is None:
            return wall_s
        now_s = last.other_s + self._elapsed_s() - last.at_s
        is_vague = last.within_s > _MOST_S
        return wall_s if is_vague and abs(wall_s - now_s) <= last.within_s else now_s

    @property
    def offset_s(self) -> float:
        """Return the lead of this machine's clock in seconds; 0 if they agree."""
        last = self._last
        if last is None:
            return 0.0
        offset_s = self._wall_s() - self.now_s()
        return offset_s if abs(offset_s) > MOST_OFFSET_S + last.within_s else 0.0


def offset_sentence(whose: str, offset_s: float, other: str) -> str:
    """Return a sentence with a clock's error and the next step."""
    side = "ahead of" if offset_s > 0 else "behind"
    return (
        f"The clock of {whose} is {abs(offset_s):.0f} s {side} {other}; set it by NTP."
    )
