"""Histogram of durations: exact counts per bucket, quantiles within 3 %."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

EXPORTED_S = (
    *(5, 15, 30, 60, 120, 300, 600, 1800, 3600),
    *(7200, 14_400, 28_800, 86_400, 259_200, 604_800),
)
"""Bounds of the buckets that are exported to Prometheus, in seconds."""

_FIRST_MS = 1000
_LAST_MS = 30 * 86_400_000
"""The longest wait that a policy allows."""

_STEP = 1.05


def _bounds() -> tuple[int, ...]:
    steps = math.ceil(math.log(_LAST_MS / _FIRST_MS, _STEP))
    grid = {round(_FIRST_MS * _STEP**step) for step in range(steps + 1)}
    # The exported bounds are bucket bounds, so exported counts are exact, too.
    return tuple(sorted(grid | {1000 * bound for bound in EXPORTED_S}))


_BOUNDS_MS = _bounds()
"""Upper bounds of the buckets, each at most 5 % above the previous one."""


@dataclass
class DurationHistogram:
    """A histogram of durations with about 300 buckets, independent of their number.

    A quantile is within 3 % of the exact one, or within a second if that is more.
    """

    count: int = 0
    total_ms: int = 0
    longest_ms: int = 0
    _shortest_ms: int = 0
    buckets: Counter[int] = field(default_factory=Counter[int])

    def add(self, duration_ms: int) -> None:
        """Count a duration; a negative one, after a clock change, counts as zero."""
        took_ms = max(0, duration_ms)
        first = self.count == 0
        self._shortest_ms = took_ms if first else min(self._shortest_ms, took_ms)
        self.longest_ms = max(self.longest_ms, took_ms)
        self.count += 1
        self.total_ms += took_ms
        self.buckets[bisect_left(_BOUNDS_MS, took_ms)] += 1

    def quantile_ms(self, share: float) -> int | None:
        """Return the duration at a quantile, from 0 to 1; None if there is none."""
        if not self.count:
            return None
        rank, seen = max(1, math.ceil(share * self.count)), 0
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            if seen >= rank:
                return self._value_ms(index)
        return self.longest_ms

    def up_to(self) -> list[int]:
        """Return the number of durations up to each bound in `EXPORTED_S`."""
        below = [*accumulate(self.buckets[i] for i in range(len(_BOUNDS_MS)))]
        return [below[bisect_left(_BOUNDS_MS, 1000 * bound)] for bound in EXPORTED_S]

    def _value_ms(self, index: int) -> int:
        if index >= len(_BOUNDS_MS):
            return self.longest_ms
        low = _BOUNDS_MS[index - 1] if index else 0
        # The geometric mean of a bucket is equally far, in percent, from both ends.
        middle = round(math.sqrt(low * _BOUNDS_MS[index]))
        return min(max(middle, self._shortest_ms), self.longest_ms)
