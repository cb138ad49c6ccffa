"""Counts of calls, waits and runs, and the rates that follow from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from keyturn.gateway.metrics.duration_histogram import DurationHistogram


class Outcome(StrEnum):
    """How a call got its answer; each call has one each time that it is asked for.

    A call that people decided and that went back to people is asked for again.
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
"""A reviewer decided it."""

CORRECTED = (Outcome.EDITED, Outcome.REJECTED)
"""A reviewer wanted something else than the agent."""

UNDECIDED = (Outcome.EXPIRED, Outcome.SUPERSEDED, Outcome.WITHDRAWN)
"""It waited for people, and ended without the word of a reviewer."""


@dataclass(frozen=True)
class Share:
    """A part of a whole."""

    part: int
    whole: int

    @property
    def rate(self) -> float | None:
        """Return it as a fraction; None of nothing."""
        return self.part / self.whole if self.whole else None


@dataclass
class Counts:
    """What happened to calls of one kind.

    Attributes:
        calls: how many got which answer.
        failed: executions that failed.
        failed_auto: those of them that ran without a decision.
        unused_auto: calls that the policy let run, and that did not: another policy
            came first, or their agent came too late.
        too_soon: approvals that came too soon and were asked for once more.
        checks: spot checks, by ``asked``, ``right`` and ``wrong``.
        seeded: seeded defects, by ``shown``, ``approved``, ``noticed`` and ``expired``.
        waits: from the card, or from going back to people, to a reviewer's decision.
        runs: finished runs.
        unasked_runs: those of them in which no call waited for people.
        unknown_runs: further runs that finished; their beginning was not read, so
            nobody knows whether they asked.
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
        """Return how many calls had one of these answers."""
        return sum(self.calls[one] for one in outcomes)

    @property
    def evaluated(self) -> int:
        """Return how many calls there were; not those that the agent got back.

        These did not fit their schema, or named no tool: nobody evaluated them. One
        that was let run and did not is not counted either: its agent asks again.
        """
        left_out = self.calls[Outcome.RETURNED] + self.unused_auto
        # What was let run in one period may lapse in the next.
        return max(0, sum(self.calls.values()) - left_out)

    @property
    def autonomous(self) -> Share:
        """Return the calls that ran without a decision by a person, and did not fail.

        Of all calls; those that the policy denied count among all.
        """
        # A call may fail in another period than it was let run in.
        let_run = self.calls[Outcome.AUTO] - self.unused_auto
        completed = max(0, let_run - self.failed_auto)
        return Share(completed, self.evaluated)

    @property
    def autonomous_runs(self) -> Share:
        """Return the runs in which nobody was asked, of those that finished."""
        return Share(self.unasked_runs, self.runs)

    @property
    def corrected(self) -> Share:
        """Return the decisions by which people edited or rejected a call."""
        return Share(self.among(*CORRECTED), self.among(*DECIDED))

    @property
    def audit_yield(self) -> Share:
        """Return the calls that were wrong, of those that people checked afterwards."""
        wrong = self.checks["wrong"]
        return Share(wrong, wrong + self.checks["right"])

    @property
    def rubber_stamped(self) -> Share:
        """Return the seeded defects that reviewers approved, of those they answered."""
        approved = self.seeded["approved"]
        return Share(approved, approved + self.seeded["noticed"])

    @property
    def is_empty(self) -> bool:
        """Return whether nothing happened that has a line of its own."""
        beside = self.checks.total() + self.seeded.total()
        return not (self.evaluated or self.runs or self.unknown_runs or beside)
