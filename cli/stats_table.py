"""Print metrics as tables of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date

from twokey.cli.console import printable
from twokey.gateway.metrics.counts import Counts
from twokey.gateway.metrics.fold import OTHERS, Metrics
from twokey.gateway.metrics.report import by_calls, by_tier
from twokey.gateway.metrics.wording import HEADINGS, cells, facts

_NAME = 20
# With the name 78 columns: a wider table is wrapped by a terminal of 80.
_WIDTHS = (7, 7, 9, 11, 8, 8, 8)
_SHOWN = 20
"""Most tools in the table; --json has all of them."""


def summary(metrics: Metrics) -> Iterator[str]:
    """Yield the lines on everything that is selected."""
    for name, rate, said in facts(metrics):
        yield f"{name:<14} {rate:>5}  {said}"


def table(metrics: Metrics, by: str) -> Iterator[str]:
    """Yield a table by ``tool``, ``tier``, ``day`` or ``hour``."""
    rows = [*_rows(metrics, by)]
    more = max(0, len(rows) - _SHOWN) if by == "tool" else 0
    yield _line(by.capitalize(), HEADINGS)
    for name, counts in rows[:_SHOWN] if more else rows:
        yield _line(name, cells(counts))
    if more:
        yield f"… and {more} more; --json lists them all"
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


def _line(name: str, row: Sequence[str]) -> str:
    # A tool is named by an agent: nothing of it may steer a terminal.
    shown = printable(name)
    shown = shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"
    padded = (f"{cell:>{width}}" for cell, width in zip(row, _WIDTHS, strict=True))
    return f"{shown:<{_NAME}}{''.join(padded)}"


def _day(day: str) -> str:
    return day if day == OTHERS else f"{date.fromisoformat(day):%a} {day}"
