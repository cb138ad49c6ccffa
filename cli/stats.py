"""Print metrics: calls without review, corrections by people, waiting times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated, TextIO
from zoneinfo import ZoneInfo

import typer

from keyturn.cli import console
from keyturn.cli.command_context import CommandContext, command_context
from keyturn.cli.console import AsJson, printable
from keyturn.cli.policy_inputs import ensure_spelled, parse_time
from keyturn.cli.store_access import use_store
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.audit_export import LAST_MS, read_export
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.metrics import report
from keyturn.gateway.metrics.counts import Counts
from keyturn.gateway.metrics.fold import OTHERS, Metrics, Selection
from keyturn.gateway.policy import hours
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.gateway.store.store import Store

_NAME = 20
# With the name 78 columns: a terminal of 80 would wrap a wider table.
_WIDTHS = (7, 7, 9, 11, 8, 8, 8)
_SHOWN = 20
"""Most tools in the table; --json has all of them."""


def _table(metrics: Metrics, by: str) -> Iterator[str]:
    """Yield a table by ``tool``, ``tier``, ``day`` or ``hour``."""
    rows = [*_rows(metrics, by)]
    more = max(0, len(rows) - _SHOWN) if by == "tool" else 0
    yield _line(by.capitalize(), report.HEADINGS)
    for name, counts in rows[:_SHOWN] if more else rows:
        yield _line(name, report.cells(counts))
    if more:
        yield f"… and {more} more; --json lists them all"
    if by == "hour":
        yield "p50, p90 and p99 cover the calls that began to wait in this hour."


def _habits(now: Metrics, before: Metrics) -> Iterator[str]:
    """Yield a table of how people decide; in brackets the four weeks before."""
    rows = [*report.habits(now, before)]
    cells = [report.HABIT_HEADINGS, *(row for _, row in rows)]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    for name, row in zip(("Habits", *(name for name, _ in rows)), cells, strict=True):
        yield _line(name, row, widths)
    if not rows:
        yield f"No tool has {report.LEAST_REVIEWS} decisions of one tier in this time."


def _rows(metrics: Metrics, by: str) -> Iterable[tuple[str, Counts]]:
    match by:
        case "tool":
            return report.by_calls(metrics)
        case "tier":
            return report.by_tier(metrics)
        case "day":
            return [(_day(day), row) for day, row in sorted(metrics.days.items())]
        case _:
            hours = sorted(metrics.hours.items())
            return [(f"{at:02}:00 to {at + 1:02}:00", row) for at, row in hours]


def _line(name: str, row: Sequence[str], widths: Iterable[int] = _WIDTHS) -> str:
    # An agent names its tools: a name must not control a terminal.
    shown = printable(name)
    shown = shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"
    padded = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    return f"{shown:<{_NAME}}{''.join(padded)}"


def _day(day: str) -> str:
    return day if day == OTHERS else f"{date.fromisoformat(day):%a} {day}"


_AGO = re.compile(r"(?P<count>[1-9][0-9]{0,3})(?P<unit>[hd])", re.ASCII)


class Table(StrEnum):
    """The meaning of a table's rows."""

    TOOL = "tool"
    TIER = "tier"
    DAY = "day"
    HOUR = "hour"


def stats(  # noqa: PLR0913 - the options of one command
    ctx: typer.Context,
    *,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="7d, 24h, a date, or ISO 8601 with its zone."
        ),
    ] = "30d",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="The same; only events before it.")
    ] = "",
    tool: Annotated[str, typer.Option(help="Only calls of this tool.")] = "",
    tier: Annotated[Tier | None, typer.Option(help="Only calls of this tier.")] = None,
    agent: Annotated[str, typer.Option(help="Only calls of this agent.")] = "",
    by: Annotated[
        list[Table] | None,
        typer.Option(help="Print a table by this.", show_default="tool, tier"),
    ] = None,
    habits: Annotated[
        bool,
        typer.Option(
            "--habits", help="Compare decisions with those of the 4 weeks before."
        ),
    ] = False,
    zone: Annotated[
        str, typer.Option(help="Zone of days and hours, such as Europe/London.")
    ] = "UTC",
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
      keyturn stats                                 the last 30 days, by tool and tier
      keyturn stats --since 7d --by hour            when do people answer slowly?
      … --since 2026-07-01 --until 2026-08-01       July
      keyturn stats --since 7d --habits             are cards still read?
      … --tool process_refund --zone Europe/London  one tool, London's days
      … --audit audit.jsonl --json                  of an export, for a machine
    """
    # One moment for all options: '--since 7d --until 7d' is an empty period, not a
    # millisecond.
    where, now = _zone(zone), datetime.now(UTC)
    selected = Selection(
        since_ms=_ms(since, "--since", where, now),
        until_ms=_ms(until, "--until", where, now) if until else None,
        tool=tool,
        tier=tier or "",
        agent=agent,
    )
    if selected.until_ms is not None and selected.until_ms <= selected.since_ms:
        raise SettingsError(f"--until {until!r} is not after --since {since!r}.")
    selections = [selected, *([selected.four_weeks_before] if habits else [])]
    metrics, *before = _metrics(command_context(ctx), selections, where, audit)
    if json:
        console.as_json(report.as_json(metrics))
        return
    typer.echo(_period(selected, where))
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
    for one in by or (Table.TOOL, Table.TIER):
        typer.echo()
        for line in _table(metrics, one):
            typer.echo(line)


def _metrics(
    command: CommandContext,
    selections: Sequence[Selection],
    where: tzinfo,
    audit: TextIO | None,
) -> list[Metrics]:
    async def read(store: Store, tenant: str) -> list[Metrics]:
        service = StatisticsService(store, tenant=tenant)
        return [await service.metrics(one, where) for one in selections]

    if audit is None:
        return use_store(command, read)
    metrics = [Metrics(one, where) for one in selections]
    try:
        # Row by row: an export may be larger than the memory.
        for event in read_export(audit, audit.name, Event):
            for one in metrics:
                one.add(event)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{audit.name!r} is not UTF-8 text.") from error
    return metrics


def _zone(name: str) -> ZoneInfo:
    try:
        return hours.zone(name)
    except ValueError as error:
        raise SettingsError(f"--zone: {error}") from error


def _ms(text: str, option: str, where: tzinfo, now: datetime) -> int:
    """Return a time in ms: relative, the beginning of a day, or with a zone."""
    if ago := _AGO.fullmatch(text):
        # Days of 24 hours, even over a change of the clocks.
        hours = int(ago["count"]) * (24 if ago["unit"] == "d" else 1)
        at = now - timedelta(hours=hours)
    else:
        try:
            # A date alone begins in the zone of the table. `parse_time` refuses one,
            # because it has no zone.
            at = datetime.combine(date.fromisoformat(text), time(), where)
        except ValueError:
            at = parse_time(text, option)
    # Limited to times that can be shown in any zone.
    return min(max(0, int(at.timestamp() * 1000)), LAST_MS)


def _period(selected: Selection, where: tzinfo) -> str:
    since = _shown(selected.since_ms, where)
    until = selected.until_ms
    to = "now" if until is None else _shown(until, where)
    names = (selected.agent, selected.tool, selected.tier)
    only = ", ".join(console.printable(name) for name in names if name)
    return f"{since} to {to}, {where}{f', only {only}' if only else ''}"


def _shown(at_ms: int, where: tzinfo) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, where):%Y-%m-%d %H:%M}"
