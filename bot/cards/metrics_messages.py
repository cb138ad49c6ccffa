"""Messages in the channel of metrics: the weekly digest, alerts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta

from twokey.bot.blocks import (
    Message,
    bar_chart,
    bold,
    box,
    context,
    header,
    line,
    rich_text,
    section,
)
from twokey.bot.cards.metrics import Row, facts_block, table_block, tool_rows
from twokey.bot.cards.refs import when
from twokey.bot.objects import Block
from twokey.bot.text_types import label, template
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.metrics.counts import Counts, Outcome
from twokey.gateway.metrics.fold import Metrics
from twokey.gateway.metrics.wording import Fact, facts
from twokey.gateway.protocol.records import Record
from twokey.sandbox.blockkit import limits

METRICS_EVENTS = frozenset({EventName.METRICS_DIGEST, EventName.METRICS_ALERT})
"""Events that are posted in the channel of metrics."""

DIGEST = "digest"
"""In the data of `METRICS_DIGEST`: what it shows, as JSON of `Digest`."""

OUTCOMES = ("Auto-approved", "Approved", "Corrected", "Other")
"""What became of the calls of a day; each call is in one of them.

Always all four: Slack colours them by their order, and a colour should mean the same
each week.
"""

_DAYS_TITLE = "Calls of each day"
_BAR = 20


class Digest(Record):
    """What a digest shows, as it was when it was due.

    Attributes:
        since_ms: the beginning of its week.
        until_ms: the end.
        facts: name, rate and words of each line.
        tools: rows of a table, without its heading.
        days: date, and how many calls there were.
        outcomes: of each day, how many of its calls had which of `OUTCOMES`; empty when
            an older version counted them.
    """

    since_ms: int
    until_ms: int
    facts: tuple[tuple[str, str, str], ...]
    tools: tuple[Row, ...]
    days: tuple[tuple[str, int], ...]
    outcomes: tuple[tuple[int, ...], ...] = ()


def digest_of(metrics: Metrics) -> Digest:
    """Return the digest of the metrics of a period that has ended."""
    selected = metrics.selected
    days = [
        (day, _outcomes(metrics.days.get(day, Counts()))) for day in _days_of(metrics)
    ]
    return Digest(
        since_ms=selected.since_ms,
        until_ms=selected.until_ms or 0,
        facts=tuple(facts(metrics)),
        tools=tuple(tool_rows(metrics)),
        # Not `evaluated`: what was let run on one day may lapse on the next, which then
        # would have fewer calls than the parts of them.
        days=tuple((day, sum(outcomes)) for day, outcomes in days),
        outcomes=tuple(outcomes for _, outcomes in days),
    )


def _days_of(metrics: Metrics) -> Iterator[str]:
    """Yield each day of the period, also those without calls; the last 20 at most."""
    selected = metrics.selected
    ends = (selected.since_ms, (selected.until_ms or 0) - 1)
    first, last = (
        datetime.fromtimestamp(at / 1000, metrics.zone).date() for at in ends
    )
    # A week has seven. Of more, a chart could not show all.
    count = min((last - first).days + 1, limits.CHART_POINTS)
    for back in reversed(range(count)):
        yield (last - timedelta(days=back)).isoformat()


def _outcomes(counts: Counts) -> tuple[int, ...]:
    approved = counts.calls[Outcome.APPROVED]
    known = (counts.autonomous.part, approved, counts.corrected.part)
    return (*known, max(0, counts.evaluated - sum(known)))


def metrics_message(event: Event, *, has_chart: bool = True) -> Message:
    """Return the message about one of `METRICS_EVENTS`.

    Args:
        event: what happened.
        has_chart: False where Slack refuses charts; the digest then has bars of text.
    """
    try:
        if event.name is EventName.METRICS_ALERT:
            return _alert(event)
        digest = Digest.model_validate_json(event.data[DIGEST])
        return _digest(digest, event.seq, has_chart=has_chart)
    # Another version may write other facts. Events behind this one must not wait.
    except (KeyError, ValueError):
        text = "These numbers cannot be shown; 'twokey stats' has them."
        return Message((section(label(text)),), text)


def _digest(digest: Digest, name: str, *, has_chart: bool) -> Message:
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
        facts_block(shown, f"{name}:facts"),
    ]
    has_calls = any(count for _, count in digest.days)
    if has_calls:
        is_drawn = has_chart and bool(digest.outcomes)
        days = _chart if is_drawn else _bars
        blocks.append(days(digest, f"{name}:days"))
    if digest.tools:
        blocks.append(table_block(digest.tools, f"{name}:tools"))
    # Screen readers read this, and not the blocks; it has words of ours alone.
    said = [
        f"{one.name}: {', '.join(filter(None, (one.rate, one.said)))}" for one in shown
    ]
    if has_calls:
        said.append(f"{_DAYS_TITLE}: {'; '.join(_said_of_days(digest))}")
    return Message(tuple(blocks), f"The week's numbers. {'. '.join(said)}.")


def _chart(digest: Digest, block_id: str) -> Block:
    days = [label(_day(day)) for day, _ in digest.days]
    columns = zip(*digest.outcomes, strict=True)
    series = [
        (label(name), column) for name, column in zip(OUTCOMES, columns, strict=True)
    ]
    return bar_chart(label(_DAYS_TITLE), days, series, block_id=block_id)


def _bars(digest: Digest, block_id: str) -> Block:
    title = line(bold(label(_DAYS_TITLE)))
    return rich_text(title, box(bars(digest.days)), block_id=block_id)


def bars(days: Sequence[tuple[str, int]]) -> str:
    """Return a bar of each day, as long as it had calls, and their number."""
    most = max(1, *(count for _, count in days))
    # Rounded up, so that a day with calls has a bar.
    return "\n".join(
        f"{_day(day)} {'█' * -(-count * _BAR // most):<{_BAR}} {count}"
        for day, count in days
    )


def _said_of_days(digest: Digest) -> Iterator[str]:
    # An older version counted no outcomes.
    outcomes = digest.outcomes or [()] * len(digest.days)
    for (day, count), row in zip(digest.days, outcomes, strict=True):
        parts = zip(row, OUTCOMES, strict=False)
        said = ", ".join(f"{part} {name.lower()}" for part, name in parts if part)
        yield f"{_day(day)}: {count}" + (f" ({said})" if said else "")


def _day(day: str) -> str:
    return f"{date.fromisoformat(day):%a %d}"


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
