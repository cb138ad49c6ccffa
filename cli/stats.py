"""Print metrics: calls without review, corrections by people, waiting times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, TextIO

import typer

from keyturn.cli import console
from keyturn.cli.command_context import command_context
from keyturn.cli.console import AsJson, flag, option, printable
from keyturn.cli.policy_inputs import ensure_spelled, parse_moment
from keyturn.cli.store_access import use_service
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.audit_export import LAST_MS, read_export
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.metrics import report
from keyturn.gateway.metrics.report import Counts, Metrics, Selection
from keyturn.gateway.service.report.audit_reading import StatisticsService

_NAME = 20
# With the name 78 columns: a terminal of 80 would wrap a wider table.
_WIDTHS = (7, 7, 9, 11, 8, 8, 8)
_SHOWN = 20
"""Most rows of a table; --json has all of them."""


def _table(heading: str, rows: Sequence[tuple[str, Counts]]) -> Iterator[str]:
    yield _line(heading, report.HEADINGS)
    for name, counts in rows[:_SHOWN]:
        yield _line(name, report.cells(counts))
    if more := len(rows[_SHOWN:]):
        yield f"… and {more} more; --json lists them all"


def _habits(now: Metrics, before: Metrics) -> Iterator[str]:
    """Yield a table of how people decide; in brackets the four weeks before."""
    rows = [*report.habits(now, before)]
    cells = [report.HABIT_HEADINGS, *(row for _, row in rows)]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    for name, row in zip(("Habits", *(name for name, _ in rows)), cells, strict=True):
        yield _line(name, row, widths)
    if not rows:
        yield f"No tool has {report.LEAST_REVIEWS} decisions of one tier in this time."


def _line(name: str, row: Sequence[str], widths: Iterable[int] = _WIDTHS) -> str:
    # An agent names its tools: a name must not control a terminal.
    shown = printable(name)
    shown = shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"
    padded = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    return f"{shown:<{_NAME}}{''.join(padded)}"


_AGO = re.compile(r"(?P<count>[1-9][0-9]{0,3})(?P<unit>[hd])", re.ASCII)


def stats(
    ctx: typer.Context,
    *,
    since: Annotated[
        str, option("TIME", "7d, 24h, a date, or ISO 8601 with its zone.")
    ] = "30d",
    until: Annotated[str, option("TIME", "The same; only events before it.")] = "",
    tool: Annotated[str, typer.Option(help="Only calls of this tool.")] = "",
    agent: Annotated[str, typer.Option(help="Only calls of this agent.")] = "",
    habits: Annotated[
        bool, flag("--habits", "Compare decisions with those of the 4 weeks before.")
    ] = False,
    audit: Annotated[
        typer.FileText | None,
        typer.Option(
            metavar="FILE",
            encoding="utf-8",
            help="An export instead of the store; - is stdin.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Count calls by decision, and report their waiting times.

    Waiting times have an error of at most 3 %; all other numbers are exact.

    Examples:
      keyturn stats                            the last 30 days, by tool and tier
      … --since 2026-07-01 --until 2026-08-01  July
      keyturn stats --since 7d --habits        are cards still read?
      … --tool process_refund                  one tool
      … --audit audit.jsonl --json             of an export, for a machine
    """
    # One moment for all options: '--since 7d --until 7d' is an empty period, not a
    # millisecond.
    now = datetime.now(UTC)
    selected = Selection(
        since_ms=_ms(since, "--since", now),
        until_ms=_ms(until, "--until", now) if until else None,
        tool=tool,
        agent=agent,
    )
    if selected.until_ms is not None and selected.until_ms <= selected.since_ms:
        raise SettingsError(f"--until {until!r} is not after --since {since!r}.")
    selections = [selected, *([selected.four_weeks_before] if habits else [])]
    metrics, *before = _metrics(ctx, selections, audit)
    if json:
        console.as_json(report.as_json(metrics))
        return
    typer.echo(_period(selected))
    if metrics.total.is_empty:
        ensure_spelled(command_context(ctx), tools=[tool], agents=[agent])
        console.note("No agent asked for such a call in this time.")
        return
    typer.echo()
    for name, rate, said in report.facts(metrics):
        typer.echo(f"{name:<14} {rate:>5}  {said}")
    for then in before:
        typer.echo()
        for line in _habits(metrics, then):
            typer.echo(line)
    for heading, rows in (
        ("Tool", report.by_calls(metrics)),
        ("Tier", report.by_tier(metrics)),
    ):
        typer.echo()
        for line in _table(heading, rows):
            typer.echo(line)


def _metrics(
    ctx: typer.Context, selections: Sequence[Selection], audit: TextIO | None
) -> list[Metrics]:
    async def read(service: StatisticsService) -> list[Metrics]:
        return [await service.metrics(one) for one in selections]

    if audit is None:
        return use_service(ctx, StatisticsService, read)
    metrics = [Metrics(one) for one in selections]
    try:
        # Row by row: an export may be larger than the memory.
        for event in read_export(audit, audit.name, Event):
            for one in metrics:
                one.add(event)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{audit.name!r} is not UTF-8 text.") from error
    return metrics


def _ms(text: str, option: str, now: datetime) -> int:
    """Return a time in ms: relative, the beginning of a day in UTC, or with a zone."""
    if ago := _AGO.fullmatch(text):
        # Days of 24 hours, even over a change of the clocks.
        hours = int(ago["count"]) * (24 if ago["unit"] == "d" else 1)
        at = now - timedelta(hours=hours)
    else:
        at = parse_moment(text, option)
    # Limited to times that can be shown in any zone.
    return min(max(0, int(at.timestamp() * 1000)), LAST_MS)


def _period(selected: Selection) -> str:
    until = selected.until_ms
    to = "now" if until is None else _shown(until)
    names = (selected.agent, selected.tool)
    only = ", ".join(console.printable(name) for name in names if name)
    only = f", only {only}" if only else ""
    return f"{_shown(selected.since_ms)} to {to}, UTC{only}"


def _shown(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"
