"""Fold events into metrics, and show them as JSON, sentences, or cells of a table.

One fold has two sources: the audit log, also as exported by `keyturn audit export`, and
live events. Both give the same numbers.

Counts are exact. Waiting times are counted in buckets, see `DurationHistogram`. Memory
does not grow with the number of events. Names of tools, and times in an export, are
arbitrary, so each table has at most `MAX_ROWS` rows and one more for all others.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    BY_POLICY,
    CHECK_ANSWER,
    EDITED,
    HANDED_TO,
    SEEDED_ANSWER,
    UNUSED,
    WAITED_MS,
    Event,
    EventName,
    SecurityKind,
)
from keyturn.gateway.protocol.records import RunRef, Tier
from keyturn.gateway.protocol.strict_json import JsonObject

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


MAX_ROWS = 1000
"""Most tools, and most days, with a separate row."""

MAX_RUNS = 10_000
"""Most unfinished runs in memory; above it, the oldest is dropped uncounted."""

OTHERS = "(others)"
"""The row for everything without a separate row."""

_OUTCOMES = {
    EventName.CALL_RAN: Outcome.AUTO,
    EventName.CALL_HANDED_OVER: Outcome.PASSED,
    EventName.CALL_DENIED: Outcome.DENIED,
    EventName.CALL_RETURNED: Outcome.RETURNED,
    EventName.ITEM_REJECTED: Outcome.REJECTED,
    EventName.ITEM_ANSWERED: Outcome.ANSWERED,
    EventName.ITEM_EXPIRED: Outcome.EXPIRED,
    EventName.ITEM_SUPERSEDED: Outcome.SUPERSEDED,
    EventName.ITEM_WITHDRAWN: Outcome.WITHDRAWN,
}
_FOUR_WEEKS_MS = 28 * 86_400_000
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_MILLISECONDS = re.compile(r"[0-9]{1,15}", re.ASCII)
_TIERS = frozenset(map(str, Tier))
_FAILED = frozenset({EventName.ITEM_FAILED, EventName.CALL_FAILED})
_HANDED = {EventName.ITEM_HANDED_OVER: "taken", EventName.ITEM_NOT_TAKEN: "not_taken"}
_COUNTED = _FAILED | {
    *_HANDED,
    EventName.ITEM_LAPSED,
    EventName.ITEM_ASKED_AGAIN,
    EventName.ITEM_CHECK_ASKED,
    EventName.ITEM_CHECKED,
    EventName.SEEDED_SHOWN,
    EventName.SEEDED_ANSWERED,
    EventName.SEEDED_EXPIRED,
}
"""Counted events that are not an answer to a call."""


@dataclass(frozen=True)
class Selection:
    """Filter for counted events. Empty text selects everything.

    Events from ``since_ms`` (inclusive) to ``until_ms`` (exclusive) count, both in Unix
    milliseconds.
    """

    since_ms: int = 0
    until_ms: int | None = None
    tool: str = ""
    agent: str = ""

    @property
    def four_weeks_before(self) -> Selection:
        """Return the same selection for the four weeks before its period."""
        since_ms = max(0, self.since_ms - _FOUR_WEEKS_MS)
        return replace(self, since_ms=since_ms, until_ms=self.since_ms)

    def is_in_time(self, event: Event) -> bool:
        """Return whether an event is in the period."""
        is_before = self.until_ms is None or event.at_ms < self.until_ms
        return is_before and event.at_ms >= self.since_ms

    def has_call(self, event: Event) -> bool:
        """Return whether the call of an event is selected."""
        return self.tool in {"", event.tool} and self.agent in {"", event.agent}

    def has_run(self, run: RunRef) -> bool:
        """Return whether a run is selected; runs have no tool."""
        return not self.tool and self.agent in {"", run.agent}


EVERYTHING = Selection()


class Metrics:
    """The counts of a period.

    Args:
        selected: filter for counted events.
        zone: time zone of days.

    Attributes:
        total: counts of all selected events.
        tools: by name; ``OTHERS`` is the row for tools above the limit.
        tiers: by name.
        days: by date, such as ``2026-11-23``, in the order of first events.
        cells: by tool and tier.
        open_runs: unfinished runs, and whether one of their calls asked people. Events
            before the period are read, too: a run counts when it ends.
        security: security events by kind.
    """

    def __init__(self, selected: Selection = EVERYTHING, zone: tzinfo = UTC) -> None:
        self.selected = selected
        self.zone = zone
        self.total = Counts()
        self.tools: dict[str, Counts] = {}
        self.tiers: dict[str, Counts] = {}
        self.days: dict[str, Counts] = {}
        self.cells: dict[tuple[str, str], Counts] = {}
        self.open_runs: dict[RunRef, bool] = {}
        self.security: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Count one event; events have to come in the order of the log."""
        self._add_run(event)
        if event.name is EventName.SECURITY_DETECTED:
            self._add_security(event)
            return
        # Answers of people and standing approvals are not reviews of a call.
        if event.concerns_no_call:
            return
        is_selected = self.selected.is_in_time(event) and self.selected.has_call(event)
        outcome = outcome_of(event)
        if not is_selected or (outcome is None and event.name not in _COUNTED):
            return
        waited_ms = _waited_ms(event) if outcome in DECIDED else None
        for counts in self._rows_of_call(event):
            _count_event(counts, event, outcome)
            if waited_ms is not None:
                counts.waits.add(waited_ms)

    def _rows_of_call(self, event: Event) -> list[Counts]:
        tool, tier = self._name(event.tool), tier_of(event)
        return [
            self.total,
            self._day(event.at_ms),
            self.tools.setdefault(tool, Counts()),
            self.tiers.setdefault(tier, Counts()),
            self.cells.setdefault((tool, tier), Counts()),
        ]

    def _day(self, at_ms: int) -> Counts:
        day = datetime.fromtimestamp(at_ms / 1000, self.zone).date().isoformat()
        if day not in self.days and len(self.days) >= MAX_ROWS:
            day = OTHERS
        return self.days.setdefault(day, Counts())

    def _name(self, tool: str) -> str:
        is_known = tool in self.tools or len(self.tools) < MAX_ROWS
        return tool if is_known else OTHERS

    def _add_run(self, event: Event) -> None:
        run = event.run_ref
        if not self.selected.has_run(run):
            return
        match event.name:
            case EventName.RUN_STARTED:
                # A second message to a waiting run does not start another run.
                self.open_runs.setdefault(run, False)
                if len(self.open_runs) > MAX_RUNS:
                    del self.open_runs[next(iter(self.open_runs))]
            case EventName.APPROVAL_OPENED if run in self.open_runs:
                # An approval that the policy decides at once asks no people.
                self.open_runs[run] = self.open_runs[run] or not event.is_auto_approved
            case EventName.RUN_FINISHED if run in self.open_runs:
                was_asked = self.open_runs.pop(run)
                if self.selected.is_in_time(event):
                    for counts in (self.total, self._day(event.at_ms)):
                        counts.runs += 1
                        counts.unasked_runs += not was_asked
            case EventName.RUN_FINISHED if self.selected.is_in_time(event):
                # Its start was not read, so it is unknown whether it asked people.
                self.total.unknown_runs += 1
            case _:
                pass

    def _add_security(self, event: Event) -> None:
        if not self.selected.is_in_time(event):
            return
        kind = event.reason if event.reason in {*SecurityKind} else OTHERS
        count = event.data.get("count", "1")
        self.security[kind] += int(count) if _COUNT.fullmatch(count) else 1


def _count_event(counts: Counts, event: Event, outcome: Outcome | None) -> None:
    if outcome is not None:
        counts.calls[outcome] += 1
    is_auto = tier_of(event) in {Tier.AUTO, Tier.NOTIFY} or event.is_covered
    has_failed = event.name in _FAILED
    counts.failed += has_failed
    counts.failed_auto += has_failed and is_auto
    is_unused = event.name is EventName.ITEM_LAPSED or UNUSED in event.data
    # Whether a program runs a call of its own is not known.
    counts.unused_auto += is_auto and is_unused and HANDED_TO not in event.data
    if event.name in _HANDED:
        counts.handed[_HANDED[event.name]] += 1
    counts.from_details += outcome is Outcome.APPROVED and (
        event.data.get("gesture") == Gesture.MODAL
    )
    counts.too_soon += event.name is EventName.ITEM_ASKED_AGAIN
    match event.name:
        case EventName.ITEM_CHECK_ASKED:
            counts.checks["asked"] += 1
        case EventName.ITEM_CHECKED:
            is_wrong = event.data.get(CHECK_ANSWER) == "wrong"
            counts.checks["wrong" if is_wrong else "right"] += 1
        case EventName.SEEDED_SHOWN:
            counts.seeded["shown"] += 1
        case EventName.SEEDED_ANSWERED:
            is_approved = event.data.get(SEEDED_ANSWER) == "approved"
            counts.seeded["approved" if is_approved else "noticed"] += 1
        case EventName.SEEDED_EXPIRED:
            counts.seeded["expired"] += 1
        case _:
            pass


def outcome_of(event: Event) -> Outcome | None:
    """Return the outcome of a call by this event; None if it has none."""
    if UNUSED in event.data:
        return None  # counted when it was authorized
    if event.name is not EventName.ITEM_AUTHORIZED:
        return _OUTCOMES.get(event.name)
    # A released claim also leaves its item authorized, without a person's action.
    if event.actor in {"", BY_GATEWAY}:
        return None
    # Calls covered by a standing approval ask no people.
    if event.actor == BY_POLICY or event.is_covered:
        return Outcome.PASSED if HANDED_TO in event.data else Outcome.AUTO
    return Outcome.EDITED if EDITED in event.data else Outcome.APPROVED


def tier_of(event: Event) -> str:
    """Return the tier of the call of an event; ``OTHERS`` if it is unknown."""
    # Only calls of tier auto fail without an approval; that event has no tier.
    if event.name is EventName.CALL_FAILED and not event.tier:
        return Tier.AUTO.value
    return event.tier if event.tier in _TIERS else OTHERS


def _waited_ms(event: Event) -> int | None:
    """Return the waiting time of an event; None if it has none."""
    text = event.data.get(WAITED_MS, "")
    return int(text) if _MILLISECONDS.fullmatch(text) else None


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def as_json(metrics: Metrics) -> JsonObject:
    """Return all counts; times are in seconds, rates from 0 to 1.

    A rate of an empty whole, and a waiting time without waits, is null.
    """
    selected = metrics.selected
    days = sorted(metrics.days.items())
    return {
        "since": utc(selected.since_ms) if selected.since_ms else None,
        "until": None if selected.until_ms is None else utc(selected.until_ms),
        "tool": selected.tool or None,
        "agent": selected.agent or None,
        "total": {
            **_row(metrics.total),
            "autonomous_runs": _share(metrics.total.autonomous_runs),
            "unknown_runs": metrics.total.unknown_runs,
        },
        "security": dict(sorted(metrics.security.items())),
        "tools": [{"tool": name, **_row(row)} for name, row in by_calls(metrics)],
        "tiers": [{"tier": name, **_row(row)} for name, row in by_tier(metrics)],
        "days": [{"day": day, **_row(row)} for day, row in days],
    }


def by_calls(metrics: Metrics) -> list[tuple[str, Counts]]:
    """Return the tools, those with most calls first."""
    rows = metrics.tools.items()
    return sorted(rows, key=lambda row: (-row[1].evaluated, row[0]))


def by_tier(metrics: Metrics) -> list[tuple[str, Counts]]:
    """Return the tiers, the least strict first."""
    order = [*map(str, Tier), OTHERS]
    return sorted(metrics.tiers.items(), key=lambda row: order.index(row[0]))


def _row(counts: Counts) -> JsonObject:
    return {
        "calls": counts.evaluated,
        "autonomous": _share(counts.autonomous),
        "corrected": _share(counts.corrected),
        "outcomes": {str(one): counts.calls[one] for one in Outcome},
        "failed": counts.failed,
        "unused": counts.unused_auto,
        "handed_over": counts.handed["taken"],
        "not_taken": counts.handed["not_taken"],
        "too_soon": counts.too_soon,
        "spot_checks": counts.checks["asked"],
        "audit_yield": _share(counts.audit_yield),
        "seeded_defects": counts.seeded["shown"],
        "rubber_stamped": _share(counts.rubber_stamped),
        "waited": _waited(counts.waits),
    }


def _share(share: Share) -> JsonObject:
    return {"count": share.part, "of": share.whole, "rate": share.rate}


def _waited(waits: DurationHistogram) -> JsonObject:
    def seconds(value_ms: int | None) -> float | None:
        return None if value_ms is None else value_ms / 1000

    return {
        "count": waits.count,
        **{name: seconds(waits.quantile_ms(at)) for name, at in QUANTILES.items()},
        "longest": seconds(waits.longest_ms if waits.count else None),
    }


def utc(at_ms: int) -> str:
    """Return Unix milliseconds as ISO 8601 in UTC, to the second."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="seconds")


HEADINGS = ("Calls", "Auto", "Decided", "Corrected", *QUANTILES)
"""Headings of the cells of a row, without the first column."""

NONE = "-"
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


class Fact(NamedTuple):
    """One line: its subject, a rate in percent or "", and the counts behind it."""

    name: str
    rate: str
    said: str


def facts(metrics: Metrics) -> Iterator[Fact]:
    """Yield the lines about all selected events; most only if their count is not 0."""
    total = metrics.total
    auto, runs, corrected = total.autonomous, total.autonomous_runs, total.corrected
    said = f"{auto.part} of {_count(auto.whole, 'call')} ran without a person"
    yield Fact("Auto-approved", rate(auto), said)
    if runs.whole or total.unknown_runs:
        said = f"{runs.part} of {_count(runs.whole, 'run')} asked nobody"
        if unknown := total.unknown_runs:
            said += f"; not known of {unknown} that began before the log that was read"
        yield Fact("Runs", rate(runs), said)
    edited, rejected = total.calls[Outcome.EDITED], total.calls[Outcome.REJECTED]
    said = f"{corrected.part} of {_count(corrected.whole, 'decision')}"
    said += f": {edited} edited, {rejected} rejected"
    yield Fact("Corrected", rate(corrected), said)
    half, most = (_ms(total.waits.quantile_ms(at)) for at in (0.5, 0.9))
    longest = _ms(total.waits.longest_ms)
    said = f"half within {half} · 90 % within {most} · longest {longest}"
    yield Fact("Decided", "", said if total.waits.count else "nobody had to decide")
    if undecided := total.among(*UNDECIDED):
        parts = [f"{total.calls[one]} {one}" for one in UNDECIDED if total.calls[one]]
        said = f"{_count(undecided, 'call')}: {', '.join(parts)}"
        yield Fact("Undecided", "", said)
    for name, count, why in (
        ("Answered", total.calls[Outcome.ANSWERED], _ANSWERED),
        ("Denied", total.calls[Outcome.DENIED], "denied by the policy or a freeze"),
        ("Returned", total.calls[Outcome.RETURNED], _RETURNED),
        ("Passed on", total.calls[Outcome.PASSED], _PASSED),
        ("Handed over", total.handed["taken"], _HANDED_ON),
        ("Not taken", total.handed["not_taken"], _NOT_TAKEN),
        ("Unused", total.unused_auto, "did not run, though the policy let them"),
        ("Too soon", total.too_soon, "approved too soon, and asked for once more"),
        ("Failed", total.failed, "ran and failed"),
    ):
        if count:
            yield Fact(name, "", f"{_count(count, 'call')} {why}")
    wrong, stamped = total.audit_yield, total.rubber_stamped
    if total.checks:
        said = f"{wrong.part} of {_count(wrong.whole, 'checked call')} wrong"
        yield Fact("Spot checks", rate(wrong), f"{said}; {total.checks['asked']} asked")
    if total.seeded:
        said = f"{stamped.part} of {_count(stamped.whole, 'answered card')} approved"
        said += f"; {total.seeded['shown']} shown"
        yield Fact("Seeded defects", rate(stamped), said)


LEAST_REVIEWS = 20
"""Fewest decisions of a row with habits: fewer could point at one person."""

HABIT_HEADINGS = ("Decided", "Approved", "Changed", "In details", "p50")


def habits(now: Metrics, before: Metrics) -> Iterator[tuple[str, list[str]]]:
    """Yield tool and tier with the cells of how people decide, most decisions first.

    A cell has the value of the earlier period behind it, if that has enough decisions.
    """
    rows = sorted(now.cells.items(), key=lambda row: (-row[1].among(*DECIDED), row[0]))
    for (tool, tier), counts in rows:
        if counts.among(*DECIDED) >= LEAST_REVIEWS:
            earlier = before.cells.get((tool, tier), Counts())
            name = tool if tier == Tier.APPROVE else f"{tool} ({tier})"
            yield name, _habit(counts, earlier)


def _habit(now: Counts, before: Counts) -> list[str]:
    is_known = before.among(*DECIDED) >= LEAST_REVIEWS
    cells = zip(_habit_cells(now), _habit_cells(before), strict=True)
    return [f"{one} ({was})" if is_known else one for one, was in cells]


def _habit_cells(counts: Counts) -> list[str]:
    changed = Share(counts.calls[Outcome.EDITED], counts.among(*DECIDED))
    shares = map(rate, (counts.approved, changed, counts.looked_closer))
    half = _ms(counts.waits.quantile_ms(0.5))
    return [str(counts.among(*DECIDED)), *shares, half]


_ANSWERED = "got words of a reviewer instead of running"
_PASSED = "left without review to programs that run them by themselves"
_HANDED_ON = "approved and handed to programs that run them by themselves"
_NOT_TAKEN = "approved, but not taken by the programs that run them"
_RETURNED = "returned to the agent: they did not fit their tool"


def cells(counts: Counts) -> list[str]:
    """Return a row under `HEADINGS`."""
    return [
        str(counts.evaluated),
        rate(counts.autonomous),
        str(counts.among(*DECIDED)),
        rate(counts.corrected),
        *(_ms(counts.waits.quantile_ms(at)) for at in QUANTILES.values()),
    ]


def rate(share: Share) -> str:
    """Return a share in percent; 0 % and 100 % are always exact."""
    if not share.whole:
        return NONE
    if 0 < share.part * 100 < share.whole:
        return "<1 %"
    most = 100 if share.part == share.whole else 99
    return f"{min(most, round(share.part * 100 / share.whole))} %"


def short_duration(value_ms: int) -> str:
    """Return a time in its two largest units, such as ``1m40s`` or ``2h05m``."""
    if value_ms < 1000:  # noqa: PLR2004 - one second
        return "<1s"
    seconds = round(value_ms / 1000)
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if seconds >= size:
            # From ten on, the smaller unit would suggest too much precision.
            rest = seconds % size // part if seconds < 10 * size else 0
            return f"{seconds // size}{unit}" + f"{rest:02}{smaller}" * bool(rest)
    return f"{seconds}s"


def _ms(value_ms: int | None) -> str:
    return NONE if value_ms is None else short_duration(value_ms)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
