"""Metrics as a JSON document, as sentences, and as cells of a table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from keyturn.gateway.metrics.counts import (
    DECIDED,
    UNDECIDED,
    Counts,
    DurationHistogram,
    Outcome,
    Share,
)
from keyturn.gateway.metrics.fold import OTHERS, Metrics
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject

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
        ("Handed over", total.handed["taken"], _HANDED),
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
_HANDED = "approved and handed to programs that run them by themselves"
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
