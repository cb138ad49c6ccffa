"""Clocks: how long ago something was, and the time of a clock elsewhere.

The store decides time. What cannot ask it for each question, such as the five minutes
of a signature of Slack, uses the store's last answer and how long ago it was. The clock
of this machine may then be wrong, or be set while the process runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

MOST_OFFSET_S = 5.0
"""How far two clocks may be apart; people read times on cards."""

_CLOSE_S, _MOST_S = 0.5, 5.0
_OLD_S = 60.0

# Not `time.monotonic`: on Linux it stands still while the machine is suspended, and
# what was known before would pass for new afterwards. Both clocks run on while a
# process is stopped (SIGSTOP). On macOS CLOCK_MONOTONIC counts suspension.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return seconds of a clock that never goes back and never stands still."""
    return time.clock_gettime(_CLOCK)


class _Reading(NamedTuple):
    """What the other clock said, when that was by ours, and how far off it may be."""

    other_s: float
    at_s: float
    within_s: float


class ReferenceClock:
    """A clock elsewhere, as far as this process knows it.

    Args:
        elapsed_s: a clock of this machine that never goes back and that nobody sets.
        wall_s: Unix seconds by this machine.
    """

    def __init__(
        self,
        *,
        elapsed_s: Callable[[], float] = now_s,
        wall_s: Callable[[], float] = time.time,  # noqa: TID251 - it is what is compared
    ) -> None:
        self._elapsed_s = elapsed_s
        self._wall_s = wall_s
        self._last: _Reading | None = None

    def asking(self) -> float:
        """Return what `answered` needs to know of the moment before a question."""
        return self._elapsed_s()

    def answered(self, other_s: float, asked_s: float, within_s: float = 0.0) -> None:
        """Take note of an answer.

        Args:
            other_s: Unix seconds that the other clock showed.
            asked_s: what `asking` returned before.
            within_s: how far off the answer itself may be.
        """
        now_s, last = self._elapsed_s(), self._last
        within_s += (now_s - asked_s) / 2
        # An answer that took long says little; it counts once the one before is old.
        # None does where this process was stopped meanwhile: the one before is better.
        is_better = last is None or within_s <= max(_CLOSE_S, last.within_s)
        is_old = last is not None and now_s - last.at_s > _OLD_S
        if is_better or (is_old and within_s <= _MOST_S):
            self._last = _Reading(other_s, (asked_s + now_s) / 2, within_s)

    def now_s(self) -> float:
        """Return its time in Unix seconds; this machine's while nothing is known.

        A first answer that took long only bounds it: this machine's clock is the
        better guess between these bounds.
        """
        wall_s, last = self._wall_s(), self._last
        if last is None:
            return wall_s
        now_s = last.other_s + self._elapsed_s() - last.at_s
        is_vague = last.within_s > _MOST_S
        return wall_s if is_vague and abs(wall_s - now_s) <= last.within_s else now_s

    @property
    def offset_s(self) -> float:
        """Return how far ahead of it this machine's clock is; 0 where they agree."""
        last = self._last
        if last is None:
            return 0.0
        offset_s = self._wall_s() - self.now_s()
        return offset_s if abs(offset_s) > MOST_OFFSET_S + last.within_s else 0.0


def offset_sentence(whose: str, offset_s: float, other: str) -> str:
    """Return what is wrong with a clock, and what to do."""
    side = "ahead of" if offset_s > 0 else "behind"
    return (
        f"The clock of {whose} is {abs(offset_s):.0f} s {side} {other}; set it by NTP."
    )
