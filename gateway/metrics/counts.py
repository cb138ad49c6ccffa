"""Counts of calls, waits and runs, and the rates that follow from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from keyturn.gateway.metrics.duration_histogram import DurationHistogram


class Outcome(StrEnum):
    """The answer of a call; each call has one each time it is asked for.

    A call that goes back to people after a decision is asked for again.
    """

    AUTO = "auto"
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
        too_soon: approvals that came too soon and had to be given again.
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
    too_soon: int = 0
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
