"""Fold events into metrics: per tool, per tier, per day and per hour of the day.

One fold has two sources: the audit log, also as exported by `keyturn audit export`, and
live events. Both give the same numbers.

Counts are exact. Waiting times are counted in buckets, see `DurationHistogram`. Memory
does not grow with the number of events. Names of tools, and times in an export, are
arbitrary, so each table has at most `MAX_ROWS` rows and one more for all others.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo

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
from keyturn.gateway.metrics.counts import DECIDED, Counts, Outcome
from keyturn.gateway.protocol.records import RunRef, Tier

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
            _count(counts, event, outcome)
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


def _count(counts: Counts, event: Event, outcome: Outcome | None) -> None:
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
