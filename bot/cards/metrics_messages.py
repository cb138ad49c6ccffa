"""Messages with metrics: the weekly digest, alerts, and the tables that they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import islice
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    block_object,
    bold,
    box,
    context,
    header,
    line,
    rich_text,
    said,
    section,
    text_run,
)
from keyturn.bot.cards.refs import when
from keyturn.bot.text import ELLIPSIS, NAME, fit, label, template, untrusted
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.metrics import report
from keyturn.gateway.metrics.report import facts
from keyturn.gateway.protocol.records import Record
from keyturn.sandbox.blockkit import JSON, limits

_HEADINGS = ("Calls", "Auto", "Corrected", "p50", "p90")
_SHOWN = (*_HEADINGS[:3], "Half within", "90 % within")
"""Headings of the columns, as many as a message shows without scrolling."""

_MAX_TOOLS = 10

Row = tuple[str, ...]
"""The name of a tool, and a cell for each of `_HEADINGS`."""


def tool_rows(metrics: report.Metrics) -> list[Row]:
    """Return the rows of a table by tool; the last may count the remaining tools."""
    tools = report.by_calls(metrics)
    rows = [_row(name, counts) for name, counts in tools[:_MAX_TOOLS]]
    if more := tools[_MAX_TOOLS:]:
        calls = str(sum(counts.evaluated for _, counts in more))
        rest = [ELLIPSIS] * (len(_HEADINGS) - 1)
        rows.append((f"{len(more)} more", calls, *rest))
    return rows


def _row(name: str, counts: report.Counts) -> Row:
    shown = dict(zip(report.HEADINGS, report.cells(counts), strict=True))
    return (name, *(shown[heading] for heading in _HEADINGS))


def facts_block(shown: Iterable[report.Fact]) -> Block:
    """Return a line for each fact."""
    lines: list[Block] = []
    for one in shown:
        rate = f"{one.rate} · " if one.rate else ""
        end = text_run(label(f"{rate}{one.said}\n"))
        lines.append(line(bold(label(f"{one.name}  ")), end))
    return rich_text(*lines)


def table_block(rows: Iterable[Sequence[str]]) -> Block:
    """Return a table of `tool_rows`; Slack accepts it in a message, not in a view."""
    # Names of tools come from agents.
    named = [(untrusted(fit(name, NAME)).text, *row) for name, *row in rows]
    cells_: list[JSON] = [
        [{"type": "raw_text", "text": cell} for cell in row]
        for row in (("Tool", *_SHOWN), *named)
    ]
    right: list[JSON] = [{"align": "right"} for _ in _HEADINGS]
    return block_object(
        "table",
        rows=cells_,
        column_settings=[{"align": "left", "is_wrapped": True}, *right],
    )


METRICS_EVENTS = frozenset({EventName.METRICS_DIGEST, EventName.METRICS_ALERT})
"""Events that are posted in the channel of metrics."""

DIGEST = "digest"
"""Key in the data of `METRICS_DIGEST`: its content, as JSON of `Digest`."""

OUTCOMES = ("Auto-approved", "Approved", "Corrected", "Other")
"""Outcomes of the calls of a day; each call has one of them.

Always all four: Slack colours them by their order, and a colour should mean the same
each week.
"""

_DAYS_TITLE = "Calls of each day"
_BAR = 20


class Digest(Record):
    """Content of a digest, at the time when it was due.

    Attributes:
        since_ms: the beginning of its week.
        until_ms: the end.
        facts: name, rate and words of each line.
        tools: rows of a table, without its heading.
        days: date, and number of calls.
        outcomes: for each day, the number of calls with each of `OUTCOMES`.
    """

    since_ms: int
    until_ms: int
    facts: tuple[tuple[str, str, str], ...]
    tools: tuple[Row, ...]
    days: tuple[tuple[str, int], ...]
    outcomes: tuple[tuple[int, ...], ...]


_MAX_HABITS = 3


def _habits(now: report.Metrics, before: report.Metrics) -> Iterator[report.Fact]:
    """Yield how people decide the most frequent calls; in brackets as before."""
    for name, cells_ in islice(report.habits(now, before), _MAX_HABITS):
        _, approved, changed, in_details, half = cells_
        said = (
            f"approved {approved}, changed {changed}, approved in Full details "
            f"{in_details}, half within {half}"
        )
        yield report.Fact(fit(name, NAME), "", said)


def digest_of(metrics: report.Metrics, before: report.Metrics) -> Digest:
    """Return the digest of the metrics of a period that has ended.

    Args:
        metrics: of the period.
        before: of the four weeks before it.
    """
    selected = metrics.selected
    days = [
        (day, _outcomes(metrics.days.get(day, report.Counts())))
        for day in _days_of(metrics)
    ]
    return Digest(
        since_ms=selected.since_ms,
        until_ms=selected.until_ms or 0,
        facts=(*facts(metrics), *_habits(metrics, before)),
        tools=tuple(tool_rows(metrics)),
        # Not `evaluated`: a call authorized on one day may lapse on the next, which
        # would then have fewer calls than the sum of its parts.
        days=tuple((day, sum(outcomes)) for day, outcomes in days),
        outcomes=tuple(outcomes for _, outcomes in days),
    )


def _days_of(metrics: report.Metrics) -> Iterator[str]:
    """Yield each day of the period, also those without calls; the last 20 at most."""
    selected = metrics.selected
    ends = (selected.since_ms, (selected.until_ms or 0) - 1)
    first, last = (
        datetime.fromtimestamp(at / 1000, metrics.zone).date() for at in ends
    )
    # A week has seven days; a chart could not show more than its limit.
    count = min((last - first).days + 1, limits.CHART_POINTS)
    for back in reversed(range(count)):
        yield (last - timedelta(days=back)).isoformat()


def _outcomes(counts: report.Counts) -> tuple[int, ...]:
    approved = counts.calls[report.Outcome.APPROVED]
    known = (counts.autonomous.part, approved, counts.corrected.part)
    return (*known, max(0, counts.evaluated - sum(known)))


def metrics_message(event: Event, *, has_chart: bool = True) -> Message:
    """Return the message about one of `METRICS_EVENTS`.

    Args:
        event: the digest or alert.
        has_chart: False if Slack refuses charts; the digest then has bars of text.
    """
    try:
        if event.name is EventName.METRICS_ALERT:
            return _alert(event)
        digest = Digest.model_validate_json(event.data[DIGEST])
        return _digest(digest, has_chart=has_chart)
    # Another version may write other facts. Later events must not wait.
    except (KeyError, ValueError):
        text = "These numbers cannot be shown; 'keyturn stats' has them."
        return Message((section(label(text)),), text)


def _digest(digest: Digest, *, has_chart: bool) -> Message:
    shown = [report.Fact(*row) for row in digest.facts]
    blocks: list[Block] = [
        header(label("The week's numbers")),
        context(
            template(
                "{since} to {until} · all agents",
                since=when(digest.since_ms),
                until=when(digest.until_ms),
            )
        ),
        facts_block(shown),
    ]
    if any(count for _, count in digest.days):
        blocks.append(_chart(digest) if has_chart else _bars(digest))
    if digest.tools:
        blocks.append(table_block(digest.tools))
    # Screen readers read this instead of the blocks; it contains only trusted words.
    told = [
        f"{one.name}: {', '.join(filter(None, (one.rate, one.said)))}" for one in shown
    ]
    return Message(tuple(blocks), f"The week's numbers. {'. '.join(told)}.")


def _chart(digest: Digest) -> Block:
    """Make bars of each outcome on each day; a message can have two such charts."""
    days = [_day(day) for day, _ in digest.days]
    columns = zip(*digest.outcomes, strict=True)
    series: list[JSON] = [
        {
            "name": name,
            "data": [
                {"label": day, "value": value}
                for day, value in zip(days, values, strict=True)
            ],
        }
        for name, values in zip(OUTCOMES, columns, strict=True)
    ]
    axis: Block = {"categories": [*days]}
    return block_object(
        "data_visualization",
        title=_DAYS_TITLE,
        chart={"type": "bar", "series": series, "axis_config": axis},
    )


def _bars(digest: Digest) -> Block:
    title = line(bold(label(_DAYS_TITLE)))
    return rich_text(title, box(bars(digest.days)))


def bars(days: Sequence[tuple[str, int]]) -> str:
    """Return a bar for each day, proportional to its calls, and their number."""
    most = max(1, *(count for _, count in days))
    # Rounded up, so that a day with calls has a bar.
    return "\n".join(
        f"{_day(day)} {'█' * -(-count * _BAR // most):<{_BAR}} {count}"
        for day, count in days
    )


def _day(day: str) -> str:
    return f"{date.fromisoformat(day):%a %d}"


def _alert(event: Event) -> Message:
    of = event.data.get("of", "")
    known = {key: int(value) for key, value in event.data.items() if key != "of"}
    if event.reason == "corrected":
        return said(
            template(
                "⚠️ *People correct the agents more often.* Of {decisions} decisions of "
                "the last 24 hours, {corrected} were an edit or a rejection: more than "
                "{limit} %.",
                decisions=known["decisions"],
                corrected=known["corrected"],
                limit=known["limit"],
            ),
            *([section(untrusted(fit(f"Only calls of {of}.", NAME)))] if of else []),
        )
    limit_s = known["limit_ms"] // 1000
    is_exact = limit_s % 60 == 0
    limit: LiteralString = "{limit} min" if is_exact else "{limit} s"
    waits = template(limit, limit=limit_s // 60 if is_exact else limit_s)
    if event.reason != "waiting":
        return said(template("✅ No call waits for longer than {waits}.", waits=waits))
    return said(
        template(
            "⏰ *Calls wait too long.* Longer than {waits}: {count}, the first since "
            "{since}. The Home tab lists those that you can decide.",
            count=known["count"],
            waits=waits,
            since=when(known["since"]),
        )
    )
