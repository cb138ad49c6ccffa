"""Counts of calls, waits and runs, and the rates that follow from them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
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
    buckets: Counter[int] = field(default_factory=Counter[int])

    def add(self, duration_ms: int) -> None:
        """Count a duration; a negative one, after a clock change, counts as zero."""
        took_ms = max(0, duration_ms)
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

    def up_to(self) -> dict[int, int]:
        """Return the number of durations up to each bound in `EXPORTED_S`."""
        below = [*accumulate(self.buckets[i] for i in range(len(_BOUNDS_MS)))]
        return {it: below[bisect_left(_BOUNDS_MS, 1000 * it)] for it in EXPORTED_S}

    def _value_ms(self, index: int) -> int:
        if index >= len(_BOUNDS_MS):
            return self.longest_ms
        low = _BOUNDS_MS[index - 1] if index else 0
        # The geometric mean of a bucket is equally far, in percent, from both ends.
        middle = round(math.sqrt(low * _BOUNDS_MS[index]))
        return min(middle, self.longest_ms)


class Outcome(StrEnum):
    """The answer of a call; each call has one each time it is asked for.

    A call that goes back to people after a decision is asked for again. ``passed``: no
    person was asked, and another program runs it by itself.
    """

    AUTO = "auto"
    PASSED = "passed"
    DENIED = "denied"
    RETURNED = "returned"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    ANSWERED = "answered"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"


DECIDED = (Outcome.APPROVED, Outcome.EDITED, Outcome.REJECTED, Outcome.ANSWERED)
"""Outcomes of a reviewer's decision."""

CORRECTED = (Outcome.EDITED, Outcome.REJECTED)
"""Outcomes in which a reviewer corrected the agent."""

UNDECIDED = (Outcome.EXPIRED, Outcome.SUPERSEDED, Outcome.WITHDRAWN)
"""Outcomes of calls that waited for people but got no decision."""


@dataclass(frozen=True)
class Share:
    """A part of a whole."""

    part: int
    whole: int

    @property
    def rate(self) -> float | None:
        """Return it as a fraction; None if the whole is empty."""
        return self.part / self.whole if self.whole else None


@dataclass
class Counts:
    """Counts for calls of one kind.

    Attributes:
        calls: number of calls by outcome.
        failed: executions that failed.
        failed_auto: failed executions that ran without a decision.
        unused_auto: calls that the policy allowed but that did not run: another policy
            came first, or the agent was too late.
        from_details: approvals that were given in Full details and not on the card.
        too_soon: approvals that came too soon and had to be given again.
        handed: decisions handed to programs that run calls by themselves, by ``taken``
            and ``not_taken``.
        checks: spot checks, by ``asked``, ``right`` and ``wrong``.
        seeded: seeded defects, by ``shown``, ``approved``, ``noticed`` and ``expired``.
        waits: from the card, or from going back to people, to a reviewer's decision.
        runs: finished runs.
        unasked_runs: finished runs without a call that waited for people.
        unknown_runs: more finished runs. Their beginning was not read, so it is unknown
            whether they asked people.
    """

    calls: Counter[Outcome] = field(default_factory=Counter[Outcome])
    failed: int = 0
    failed_auto: int = 0
    unused_auto: int = 0
    from_details: int = 0
    too_soon: int = 0
    handed: Counter[str] = field(default_factory=Counter[str])
    checks: Counter[str] = field(default_factory=Counter[str])
    seeded: Counter[str] = field(default_factory=Counter[str])
    waits: DurationHistogram = field(default_factory=DurationHistogram)
    runs: int = 0
    unasked_runs: int = 0
    unknown_runs: int = 0

    def among(self, *outcomes: Outcome) -> int:
        """Return how many calls had one of these outcomes."""
        return sum(self.calls[one] for one in outcomes)

    @property
    def evaluated(self) -> int:
        """Return the number of evaluated calls.

        Two kinds are excluded. Returned calls did not fit their schema or named no
        tool, so they were not evaluated. Calls that were allowed but did not run are
        asked for again.
        """
        left_out = self.calls[Outcome.RETURNED] + self.unused_auto
        # A call allowed in one period may lapse in the next.
        return max(0, sum(self.calls.values()) - left_out)

    @property
    def autonomous(self) -> Share:
        """Return the calls that ran without a person's decision and did not fail.

        The whole is all evaluated calls, including denied ones.
        """
        # A call may be allowed in one period and fail in the next.
        let_run = self.calls[Outcome.AUTO] - self.unused_auto
        completed = max(0, let_run - self.failed_auto)
        return Share(completed, self.evaluated)

    @property
    def autonomous_runs(self) -> Share:
        """Return the runs without a question to people, of the finished ones."""
        return Share(self.unasked_runs, self.runs)

    @property
    def corrected(self) -> Share:
        """Return the decisions in which people edited or rejected a call."""
        return Share(self.among(*CORRECTED), self.among(*DECIDED))

    @property
    def approved(self) -> Share:
        """Return the decisions in which people approved a call unchanged."""
        return Share(self.calls[Outcome.APPROVED], self.among(*DECIDED))

    @property
    def looked_closer(self) -> Share:
        """Return the approvals that were given in Full details."""
        return Share(self.from_details, self.calls[Outcome.APPROVED])

    @property
    def audit_yield(self) -> Share:
        """Return the calls found wrong, of those that people checked afterwards."""
        wrong = self.checks["wrong"]
        return Share(wrong, wrong + self.checks["right"])

    @property
    def rubber_stamped(self) -> Share:
        """Return the seeded defects that reviewers approved, of the answered ones."""
        approved = self.seeded["approved"]
        return Share(approved, approved + self.seeded["noticed"])

    @property
    def is_empty(self) -> bool:
        """Return whether all counts that have a line in the report are 0."""
        beside = self.checks.total() + self.seeded.total()
        return not (self.evaluated or self.runs or self.unknown_runs or beside)
