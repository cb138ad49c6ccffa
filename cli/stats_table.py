"""Print metrics as tables of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import pairwise

from twokey.cli.console import printable
from twokey.gateway.metrics.counts import DECIDED, UNDECIDED, Counts, Outcome, Share
from twokey.gateway.metrics.fold import OTHERS, Metrics
from twokey.gateway.metrics.report import QUANTILES, by_calls, by_tier

_NONE = "-"
_NAME = 20
_HEADINGS = ("Calls", "Auto", "Decided", "Corrected", *QUANTILES)
_WIDTHS = (7, 7, 9, 11, 8, 8, 8)
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
_SHOWN = 20
"""Most tools in the table; --json has all of them."""


def summary(metrics: Metrics) -> Iterator[str]:
    """Yield the lines on everything that is selected."""
    total = metrics.total
    runs = total.autonomous_runs
    auto, corrected = total.autonomous, total.corrected
    said = f"{auto.part} of {_count(auto.whole, 'call')} ran without a person"
    yield _fact("Auto-approved", rate(auto), said)
    if runs.whole:
        said = f"{runs.part} of {_count(runs.whole, 'run')} asked nobody"
        yield _fact("", rate(runs), said)
    edited, rejected = total.calls[Outcome.EDITED], total.calls[Outcome.REJECTED]
    yield _fact(
        "Corrected",
        rate(corrected),
        f"{corrected.part} of {_count(corrected.whole, 'decision')}: "
        f"{edited} edited, {rejected} rejected",
    )
    waits = total.waits
    times = [f"{name} {_ms(waits.quantile_ms(at))}" for name, at in QUANTILES.items()]
    longest = f"longest {_ms(waits.longest_ms)}"
    said = " · ".join([*times, longest]) if waits.count else "nobody had to decide"
    yield _fact("Waited", "", said)
    yield from _rest(total)


def _rest(total: Counts) -> Iterator[str]:
    """Yield what is worth a line only when it happened."""
    if undecided := total.among(*UNDECIDED):
        parts = [f"{total.calls[one]} {one}" for one in UNDECIDED if total.calls[one]]
        calls = _count(undecided, "call")
        yield _fact("Undecided", "", f"{calls}: {', '.join(parts)}")
    for outcome, why in (
        (Outcome.ANSWERED, "got words of a reviewer instead of running"),
        (Outcome.DENIED, "denied by the policy"),
        (Outcome.RETURNED, "returned to the agent: they did not fit their tool"),
    ):
        if count := total.calls[outcome]:
            yield _fact(
                outcome.value.capitalize(), "", f"{_count(count, 'call')} {why}"
            )
    if total.failed:
        yield _fact("Failed", "", f"{_count(total.failed, 'call')} ran and failed")


def table(metrics: Metrics, by: str) -> Iterator[str]:
    """Yield a table by ``tool``, ``tier``, ``day`` or ``hour``."""
    rows = [*_rows(metrics, by)]
    yield _line(by.capitalize(), _HEADINGS)
    yield from (_line(name, _cells(counts)) for name, counts in rows[:_SHOWN])
    if len(rows) > _SHOWN and by == "tool":
        yield f"… and {len(rows) - _SHOWN} more; --json lists them all"
    else:
        yield from (_line(name, _cells(counts)) for name, counts in rows[_SHOWN:])
    if by == "hour":
        yield "p50, p90 and p99 are of the calls that began to wait in this hour."


def _rows(metrics: Metrics, by: str) -> Iterable[tuple[str, Counts]]:
    match by:
        case "tool":
            return by_calls(metrics)
        case "tier":
            return by_tier(metrics)
        case "day":
            return [(_day(day), row) for day, row in sorted(metrics.days.items())]
        case _:
            hours = sorted(metrics.hours.items())
            return [(f"{at:02}:00 to {at + 1:02}:00", row) for at, row in hours]


def _cells(counts: Counts) -> list[str]:
    return [
        str(counts.asked),
        rate(counts.autonomous),
        str(counts.among(*DECIDED)),
        rate(counts.corrected),
        *(_ms(counts.waits.quantile_ms(at)) for at in QUANTILES.values()),
    ]


def _line(name: str, cells: Sequence[str]) -> str:
    # A tool is named by an agent: nothing of it may steer a terminal.
    shown = printable(name)
    shown = shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"
    padded = (f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
    return f"{shown:<{_NAME}}{''.join(padded)}"


def _fact(name: str, share: str, said: str) -> str:
    return f"{name:<14} {share:>5}  {said}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _day(day: str) -> str:
    return day if day == OTHERS else f"{date.fromisoformat(day):%a} {day}"


def rate(share: Share) -> str:
    """Return a share in percent; only all of them are 100 %, and none 0 %."""
    if not share.whole:
        return _NONE
    if 0 < share.part * 100 < share.whole:
        return "<1 %"
    return f"{share.part * 100 // share.whole} %"


def _ms(value_ms: int | None) -> str:
    return _NONE if value_ms is None else short_duration(value_ms)


def short_duration(value_ms: int) -> str:
    """Return a time in its two largest units, such as ``1m40s`` or ``2h05m``."""
    if value_ms < 1000:  # noqa: PLR2004 - one second
        return "<1s"
    seconds = round(value_ms / 1000)
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if seconds >= size:
            # Of ten and more, the smaller unit would be more exact than the count is.
            rest = seconds % size // part if seconds < 10 * size else 0
            return f"{seconds // size}{unit}" + f"{rest:02}{smaller}" * bool(rest)
    return f"{seconds}s"
