"""Blocks that show metrics: summary lines, a table by tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twokey.bot.blocks import bold, line, rich_text, text_run
from twokey.bot.objects import Block, block_object
from twokey.bot.text import ELLIPSIS, fit
from twokey.bot.text_types import label, untrusted
from twokey.gateway.metrics.counts import Counts
from twokey.gateway.metrics.fold import Metrics
from twokey.gateway.metrics.report import by_calls
from twokey.gateway.metrics.wording import HEADINGS, Fact, cells, facts
from twokey.sandbox.blockkit import JSON

_HEADINGS = ("Calls", "Auto", "Corrected", "p50", "p90")
"""As many columns as a message shows without scrolling."""

_MAX_TOOLS = 10
_NAME = 60

Row = tuple[str, ...]
"""The name of a tool, and a cell for each of `_HEADINGS`."""


def metrics_facts(metrics: Metrics, *, block_id: str) -> Block:
    """Return the lines on everything that was counted; for messages and Home."""
    return facts_block(facts(metrics), block_id)


def metrics_table(metrics: Metrics, *, block_id: str) -> Block:
    """Return a table by tool, those with most calls first; for messages alone.

    Slack takes one table in a message, and none in a view.
    """
    return table_block(tool_rows(metrics), block_id)


def tool_rows(metrics: Metrics) -> list[Row]:
    """Return the rows of a table by tool; the last may say that there are more."""
    tools = by_calls(metrics)
    rows = [_row(name, counts) for name, counts in tools[:_MAX_TOOLS]]
    if more := tools[_MAX_TOOLS:]:
        calls = str(sum(counts.evaluated for _, counts in more))
        rest = [ELLIPSIS] * (len(_HEADINGS) - 1)
        rows.append((f"{len(more)} more", calls, *rest))
    return rows


def _row(name: str, counts: Counts) -> Row:
    shown = dict(zip(HEADINGS, cells(counts), strict=True))
    return (name, *(shown[heading] for heading in _HEADINGS))


def facts_block(shown: Iterable[Fact], block_id: str) -> Block:
    """Return a line for each fact."""
    lines: list[Block] = []
    for one in shown:
        rate = f"{one.rate} · " if one.rate else ""
        end = text_run(label(f"{rate}{one.said}\n"))
        lines.append(line(bold(label(f"{one.name}  ")), end))
    return rich_text(*lines, block_id=block_id)


def table_block(rows: Iterable[Sequence[str]], block_id: str) -> Block:
    """Return a table of `tool_rows`."""
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
