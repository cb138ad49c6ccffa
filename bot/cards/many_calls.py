"""Render the calls of a card with a table: failures, what to look at, every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from twokey.bot.blocks import actions, bold, box, context, line, rich_text, section
from twokey.bot.cards import buttons
from twokey.bot.cards.call_rows import agent_statement, checked
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.noticed import in_order, mark, noticed, notices
from twokey.bot.cards.table import cell_values, table_of
from twokey.bot.objects import Block, block_object
from twokey.bot.text import excerpt, fit
from twokey.bot.text_types import Template, joined, label, template
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.states import ItemState
from twokey.sandbox.blockkit import JSON
from twokey.sandbox.blockkit.payload_rules import text_length

_ENTRIES = 3
"""Calls in doubt that have buttons on the card, and failures whose error it shows."""
_NUMBERS = 8
_ARGS = 100
_ERROR = 160
_FAILED: LiteralString = "❌ *{n} of {all} failed:*"
_DOUBTFUL: LiteralString = "❓ *{n} of {all} may have run:*"
_CUT: LiteralString = "There is more to say than fits here: open the marked calls."


def many_calls(frame: Frame, *, room: int) -> tuple[list[Block], Block]:
    """Return what a card says of its calls, and their table, what needs a look first.

    Args:
        frame: of the card.
        room: how many characters there are. The table is never cut for what stands
            above it: then less is said there, and the marks stay.
    """
    approval = frame.approval
    found = noticed(approval)
    heading, *cells = table_of(approval).rows
    rows: list[JSON] = [_cells(heading)]
    for item in in_order(approval, found):
        number, *others = cells[item.index]
        rows.append(_cells([mark(item, found) + number, *others]))
    table = block_object("table", rows=rows, block_id=frame.block_id("calls"))
    says = agent_statement(frame)
    left = room - text_length([table, *says]) - len(_CUT)
    first, then = _failures(frame), notices(frame)
    failures = _fitting(first, left)
    above = _fitting([[one] for one in then], left - text_length(failures))
    is_cut = len(failures) + len(above) < sum(map(len, first)) + len(then)
    cut = [context(template(_CUT), block_id=frame.block_id("cut"))] if is_cut else []
    return [*failures, *says, *above, *cut], table


def _fitting(parts: Iterable[Sequence[Block]], room: int) -> list[Block]:
    """Return the parts for which there is room."""
    blocks: list[Block] = []
    for part in parts:
        if text_length([*blocks, *part]) <= room:
            blocks += part
    return blocks


def _cells(row: Iterable[str]) -> JSON:
    return [{"type": "raw_text", "text": cell} for cell in row]


def _failures(frame: Frame) -> list[list[Block]]:
    """Name the calls that failed or may have run, with the buttons to answer."""
    items = frame.approval.items
    doubts = [item for item in items if item.state is ItemState.IN_DOUBT]
    ended = [item for item in items if item.state is ItemState.FAILED]
    failed = [item for item in items if item.has_failed] + ended
    heads: tuple[tuple[LiteralString, list[int]], ...] = (
        (_FAILED, sorted(item.index for item in failed)),
        (_DOUBTFUL, [item.index for item in doubts if not item.has_failed]),
    )
    lines = [_named(head, found, len(items)) for head, found in heads if found]
    if not lines:
        return []
    parts = [[section(joined("\n", lines), block_id=frame.block_id("failed"))]]
    parts += [_in_doubt(frame, item) for item in doubts[:_ENTRIES]]
    more = len(doubts) - _ENTRIES
    if more > 0:
        text = template("{n} more need an answer: *Open a call…* below.", n=more)
        parts.append([context(text, block_id=frame.block_id("doubts"))])
    errors = [
        f"{item.index + 1}: {excerpt(item.result.summary, _ERROR).text}"
        for item in ended
        if item.result and item.result.summary
    ][: max(0, _ENTRIES - len(doubts))]
    if errors:
        says = line(bold(label("Errors (as the tool says):")))
        boxes = [box(text) for text in errors]
        parts.append([rich_text(says, *boxes, block_id=frame.block_id("errors"))])
    return parts


def _named(head: LiteralString, indexes: Sequence[int], every: int) -> Template:
    numbers = [template("#{n}", n=index + 1) for index in indexes[:_NUMBERS]]
    more = len(indexes) - _NUMBERS
    rest = [template("and {n} more", n=more)] if more > 0 else []
    counted = template(head, n=len(indexes), all=every)
    return joined(" ", [counted, joined(", ", numbers), *rest])


def _in_doubt(frame: Frame, item: Item) -> list[Block]:
    """Return one call in doubt: what it is, its error, and the buttons to answer."""
    values = cell_values(item).items()
    args = " · ".join(f"{name} {text}" for name, text in values)
    error = item.result.summary if item.result else ""
    what = "failed" if item.has_failed else "may have run"
    title = label(f"Call {item.index + 1} {what}:")
    parts = [line(bold(title)), box(fit(args, _ARGS))]
    if error:
        parts += [line(bold(label("Result (as the tool says):")))]
        parts += [box(excerpt(error, _ERROR).text)]
    name = f"{item.index}.doubt"
    return [
        rich_text(*parts, *checked(frame, item), block_id=frame.block_id(name)),
        actions(
            *buttons.decisions(frame, item, is_shown_whole=True),
            block_id=frame.block_id(f"{name}.actions"),
        ),
    ]
