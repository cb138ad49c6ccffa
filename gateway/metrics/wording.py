"""Format metrics as sentences and table cells, for a terminal and for Slack."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from keyturn.gateway.metrics.counts import DECIDED, UNDECIDED, Counts, Outcome, Share
from keyturn.gateway.metrics.fold import Metrics
from keyturn.gateway.metrics.report import QUANTILES

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
    """Yield the lines about all selected events."""
    total = metrics.total
    runs = total.autonomous_runs
    auto, corrected = total.autonomous, total.corrected
    said = f"{auto.part} of {_count(auto.whole, 'call')} ran without a person"
    yield Fact("Auto-approved", rate(auto), said)
    if runs.whole or total.unknown_runs:
        said = f"{runs.part} of {_count(runs.whole, 'run')} asked nobody"
        if unknown := total.unknown_runs:
            said += f"; not known of {unknown} that began before the log that was read"
        yield Fact("Runs", rate(runs), said)
    edited, rejected = total.calls[Outcome.EDITED], total.calls[Outcome.REJECTED]
    yield Fact(
        "Corrected",
        rate(corrected),
        f"{corrected.part} of {_count(corrected.whole, 'decision')}: "
        f"{edited} edited, {rejected} rejected",
    )
    waits = total.waits
    half, most = (_ms(waits.quantile_ms(at)) for at in (0.5, 0.9))
    longest = f"longest {_ms(waits.longest_ms)}"
    said = f"half within {half} · 90 % within {most} · {longest}"
    said = said if waits.count else "nobody had to decide"
    yield Fact("Decided", "", said)
    yield from _rest(total)


def _rest(total: Counts) -> Iterator[Fact]:
    """Yield the lines that are shown only if their count is not 0."""
    if undecided := total.among(*UNDECIDED):
        parts = [f"{total.calls[one]} {one}" for one in UNDECIDED if total.calls[one]]
        calls = _count(undecided, "call")
        yield Fact("Undecided", "", f"{calls}: {', '.join(parts)}")
    for outcome, why in (
        (Outcome.ANSWERED, "got words of a reviewer instead of running"),
        (Outcome.DENIED, "denied by the policy"),
        (Outcome.RETURNED, "returned to the agent: they did not fit their tool"),
    ):
        if count := total.calls[outcome]:
            said = f"{_count(count, 'call')} {why}"
            yield Fact(outcome.value.capitalize(), "", said)
    if unused := total.unused_auto:
        said = f"{_count(unused, 'call')} did not run, though the policy let them"
        yield Fact("Unused", "", said)
    if total.checks["asked"] or total.audit_yield.whole:
        found = total.audit_yield
        said = (
            f"{found.part} of {_count(found.whole, 'checked call')} wrong; "
            f"{total.checks['asked']} asked"
        )
        yield Fact("Spot checks", rate(found), said)
    if total.seeded:
        stamped = total.rubber_stamped
        answered = _count(stamped.whole, "answered card")
        said = f"{stamped.part} of {answered} approved; {total.seeded['shown']} shown"
        yield Fact("Seeded defects", rate(stamped), said)
    if total.too_soon:
        times = "time" if total.too_soon == 1 else "times"
        said = f"{total.too_soon} {times} an approval was asked for once more"
        yield Fact("Too soon", "", said)
    if total.failed:
        yield Fact("Failed", "", f"{_count(total.failed, 'call')} ran and failed")


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
