"""Render metrics for Slack: summary lines, a table by tool, weekly digest, alerts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from twokey.bot.blocks import (
    Message,
    bold,
    box,
    context,
    header,
    line,
    rich_text,
    section,
    text_run,
)
from twokey.bot.cards.refs import when
from twokey.bot.objects import Block, block_object
from twokey.bot.text import fit
from twokey.bot.text_types import label, template, untrusted
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.metrics.counts import Counts
from twokey.gateway.metrics.fold import OTHERS, Metrics
from twokey.gateway.metrics.report import by_calls
from twokey.gateway.metrics.wording import HEADINGS, Fact, cells, facts
from twokey.gateway.protocol.records import Record
from twokey.sandbox.blockkit import JSON

METRICS_EVENTS = frozenset({EventName.METRICS_DIGEST, EventName.METRICS_ALERT})
"""Events that are posted in the channel of metrics."""

DIGEST = "digest"
"""In the data of `METRICS_DIGEST`: what it shows, as JSON of `Digest`."""

_HEADINGS = ("Calls", "Auto", "Corrected", "p50", "p90")
"""As many columns as a message shows without scrolling."""

_MAX_TOOLS = 10
_BAR = 20
_NAME = 60


class Digest(Record):
    """What a digest shows, as it was when it was due.

    Attributes:
        since_ms: the beginning of its week.
        until_ms: the end.
        facts: name, rate and words of each line.
        tools: rows of a table, without its heading.
        days: date, and how many calls there were.
    """

    since_ms: int
    until_ms: int
    facts: tuple[tuple[str, str, str], ...]
    tools: tuple[tuple[str, ...], ...]
    days: tuple[tuple[str, int], ...]


def digest_of(metrics: Metrics) -> Digest:
    """Return the digest of the metrics of a period that has ended."""
    selected = metrics.selected
    rows = by_calls(metrics)[:_MAX_TOOLS]
    days = sorted(metrics.days.items())
    return Digest(
        since_ms=selected.since_ms,
        until_ms=selected.until_ms or 0,
        facts=tuple(facts(metrics)),
        tools=tuple(_row(name, counts) for name, counts in rows),
        days=tuple((day, counts.evaluated) for day, counts in days if day != OTHERS),
    )


def metrics_facts(metrics: Metrics, *, block_id: str) -> Block:
    """Return the lines on everything that was counted; for messages and Home."""
    return _facts(facts(metrics), block_id)


def metrics_table(metrics: Metrics, *, block_id: str) -> Block:
    """Return a table by tool, those with most calls first; for messages alone.

    Slack takes one table in a message, and none in a view.
    """
    rows = by_calls(metrics)[:_MAX_TOOLS]
    return _table([_row(name, counts) for name, counts in rows], block_id)


def metrics_message(event: Event) -> Message:
    """Return the message about one of `METRICS_EVENTS`."""
    try:
        if event.name is EventName.METRICS_ALERT:
            return _alert(event)
        return _digest(Digest.model_validate_json(event.data[DIGEST]), event.seq)
    # Another version may write other facts. Events behind this one must not wait.
    except (KeyError, ValueError):
        text = "These numbers cannot be shown; 'twokey stats' has them."
        return Message((section(label(text)),), text)


def _digest(digest: Digest, name: str) -> Message:
    shown = [Fact(*row) for row in digest.facts]
    blocks: list[Block] = [
        header(label("The week's numbers")),
        context(
            template(
                "{since} to {until} · all agents",
                since=when(digest.since_ms),
                until=when(digest.until_ms),
            )
        ),
        _facts(shown, f"{name}:facts"),
    ]
    if digest.days:
        title = line(bold(label("Calls of each day")))
        block_id = f"{name}:days"
        blocks.append(rich_text(title, box(bars(digest.days)), block_id=block_id))
    if digest.tools:
        blocks.append(_table(digest.tools, f"{name}:tools"))
    # Screen readers read this, and not the blocks; it has words of ours alone.
    said = ". ".join(
        f"{one.name}: {', '.join(filter(None, (one.rate, one.said)))}" for one in shown
    )
    return Message(tuple(blocks), f"The week's numbers. {said}.")


def bars(days: Sequence[tuple[str, int]]) -> str:
    """Return a bar of each day, as long as it had calls, and their number."""
    most = max(1, *(count for _, count in days))
    # Rounded up, so that a day with calls has a bar.
    return "\n".join(
        f"{date.fromisoformat(day):%a %d} {'█' * -(-count * _BAR // most):<{_BAR}} "
        f"{count}"
        for day, count in days
    )


def _alert(event: Event) -> Message:
    known = {key: int(value) for key, value in event.data.items()}
    if event.reason == "corrected":
        words = template(
            "⚠️ *People correct the agents more often.* Of {decisions} decisions of the "
            "last 24 hours, {corrected} were an edit or a rejection: more than "
            "{limit} %.",
            decisions=known["decisions"],
            corrected=known["corrected"],
            limit=known["limit"],
        )
        text = "People correct the agents more often."
    elif event.reason == "waiting":
        words = template(
            "⏰ *Calls wait too long.* {count} wait for longer than {limit} minutes, "
            "the first since {since}. The Home tab lists those that you can decide.",
            count=known["count"],
            limit=known["limit"],
            since=when(known["since"]),
        )
        text = "Calls wait too long."
    else:
        limit = known["limit"]
        words = template(
            "✅ No call waits for longer than {limit} minutes any more.", limit=limit
        )
        text = "No call waits too long any more."
    return Message((section(words),), text)


def _facts(shown: Iterable[Fact], block_id: str) -> Block:
    lines: list[Block] = []
    for one in shown:
        rate = f"{one.rate} · " if one.rate else ""
        end = text_run(label(f"{rate}{one.said}\n"))
        lines.append(line(bold(label(f"{one.name}  ")), end))
    return rich_text(*lines, block_id=block_id)


def _row(name: str, counts: Counts) -> tuple[str, ...]:
    shown = dict(zip(HEADINGS, cells(counts), strict=True))
    return (name, *(shown[heading] for heading in _HEADINGS))


def _table(rows: Iterable[Sequence[str]], block_id: str) -> Block:
    # Names of tools come from agents.
    named = [(untrusted(fit(name, _NAME)).text, *row) for name, *row in rows]
    cells_: list[JSON] = [
        [{"type": "raw_text", "text": cell} for cell in row]
        for row in (("Tool", *_HEADINGS), *named)
    ]
    right: list[JSON] = [{"align": "right"} for _ in _HEADINGS]
    return block_object(
        "table",
        rows=cells_,
        block_id=block_id,
        column_settings=[{"align": "left"}, *right],
    )
