"""Compare the clock of an agent's machine with the gateway's, by its answers.

Only to say what is wrong: who answers at the gateway's address may send any date, so
no receipt is judged by it.
"""

from __future__ import annotations

import logging
from email.utils import parsedate_to_datetime

from twokey.gateway.reference_clock import ReferenceClock, offset_sentence

logger = logging.getLogger(__name__)

_HALF_SECOND = 0.5
"""A date in a header has whole seconds."""


class GatewayClock:
    """How far the clock of this machine is from that of a gateway.

    Args:
        url: of the gateway.
        clock: that of the gateway, as far as it is known.
    """

    def __init__(self, url: str, clock: ReferenceClock | None = None) -> None:
        self._url = url
        self._clock = clock or ReferenceClock()
        self._told_s = 0

    def asking(self) -> float:
        """Return what `answered` needs to know of the moment before a question."""
        return self._clock.asking()

    def answered(self, date: str, asked_s: float) -> None:
        """Take note of the date of an answer; log when the clock gets wrong or right.

        Args:
            date: the header ``Date``; what is none says nothing.
            asked_s: what `asking` returned before.
        """
        try:
            date_s = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._clock.answered(date_s + _HALF_SECOND, asked_s, _HALF_SECOND)
        ahead_s = self.ahead_s
        if abs(ahead_s - self._told_s) <= 1 and bool(ahead_s) == bool(self._told_s):
            return
        self._told_s = ahead_s
        if ahead_s:
            logger.error("gateway.clock_differs ahead_s=%+d url=%s", ahead_s, self._url)
        else:
            logger.info("gateway.clock_agrees url=%s", self._url)

    @property
    def ahead_s(self) -> int:
        """Return how far ahead of the gateway's clock ours is; 0 where they agree."""
        return round(self._clock.offset_s)

    @property
    def problem(self) -> str:
        """Return what is wrong, as a sentence; "" if the clocks agree."""
        of_gateway = f"that of the gateway {self._url!r}"
        return (
            offset_sentence("this machine", self.ahead_s, of_gateway)
            if self.ahead_s
            else ""
        )
