"""Render many calls of one tool as a table: a row per call, a column per argument.

Slack takes one table in a message, of 100 rows and 20 columns. Cells are plain text.
What does not fit into a cell is cut and marked, and its call is then decided from the
full view only: nobody approves what they could not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twokey.bot.blocks import context
from twokey.bot.cards.diff import state_text
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.listing import (
    all_text,
    is_short,
    named_values,
    schema_order,
)
from twokey.bot.cards.states import STATE_NAMES
from twokey.bot.cards.votes import counted_votes
from twokey.bot.homoglyphs import homoglyph_warnings
from twokey.bot.objects import Block, block_object
from twokey.bot.text import fit
from twokey.bot.text_types import Plain, Template, template, untrusted
from twokey.gateway.approvals.batch_deciding import index_ranges
from twokey.gateway.approvals.hidden import has_hidden
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.tiers import Tier
from twokey.sandbox.blockkit import JSON, limits

TABLE_CHARS = 6_000
"""Characters in all cells; the rest of the card's budget is for what is around it."""
_STATUS = 26
"""How long a status may be. Reserved for each call, so that whether a call is shown
whole does not depend on where it or any other call stands."""

_CELLS = (60, 40, 24, 12)
"""How long a cell may be; the first with which the table fits."""
_MAX_ARGUMENTS = limits.TABLE_COLUMNS - 3
_NAME = 40
_REASONS = 3
_REASON = 160
_STATE = "State seen"


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a table, its heading first.

    ``whole`` are the indexes of the calls of which every character is shown.
    """

    rows: tuple[tuple[str, ...], ...]
    whole: frozenset[int]


def table_of(approval: Approval) -> Table:
    """Return the table of an approval, as much of it as fits on a card."""
    values = [cell_values(item) for item in approval.items]
    names = [*dict.fromkeys(name for row in values for name in row)]
    states = [state_text(item).replace("\n", " · ") for item in approval.items]
    if any(states):
        names = [*names[: _MAX_ARGUMENTS - 1], _STATE]
        # An argument of that name would be hidden by the state; it is then not whole.
        values = [
            {**row, _STATE: state} if _STATE not in row else row
            for row, state in zip(values, states, strict=True)
        ]
    shown = names[:_MAX_ARGUMENTS]
    free = TABLE_CHARS - _STATUS * (len(values) + 1)
    for longest in _CELLS:
        table = _cut(approval, shown, values, states, longest)
        if sum(len(cell) for row in table.rows for cell in row[:-1]) <= free:
            return table
    # At the shortest cells the columns on the right have to go, and with them nothing
    # is whole.
    few = free // ((len(values) + 1) * _CELLS[-1]) - 2
    return _cut(approval, shown[: max(few, 1)], values, states, _CELLS[-1])


def cell_values(item: Item) -> dict[str, str]:
    """Return the arguments by their names, as they can be read.

    A text that reads as another kind of value, such as ``78291``, needs no quotes where
    the schema says that the argument is a text.
    """
    shown = dict(named_values(item.args, item.redact, schema_order(item)))
    bare = {
        name: text
        for name, text in item.args.items()
        if isinstance(text, str) and shown.get(name) == f'"{text}"'
        # Blanks at the edges, and nothing at all, would not be seen without quotes.
        if text and text.strip() == text
    }
    return {**shown, **{name: bare[name] for name in bare.keys() & _texts(item)}}


def _texts(item: Item) -> frozenset[str]:
    declared = (item.args_schema or {}).get("properties")
    return frozenset(
        name
        for name, schema in (declared.items() if isinstance(declared, dict) else ())
        if isinstance(schema, dict) and schema.get("type") == "string"
    )


def table(frame: Frame) -> list[Block]:
    """Return the table of a card, and what is said of single calls in it."""
    approval = frame.approval
    rows: list[JSON] = [
        [{"type": "raw_text", "text": cell} for cell in row]
        for row in table_of(approval).rows
    ]
    return [
        block_object("table", rows=rows, block_id=frame.block_id("calls")),
        *_warnings(frame),
        *_reasons(frame),
    ]


def _cut(
    approval: Approval,
    names: Sequence[str],
    values: Sequence[dict[str, str]],
    states: Sequence[str],
    longest: int,
) -> Table:
    rows = [("#", *map(_heading, names), "Status")]
    whole: set[int] = set()
    for item, row, state in zip(approval.items, values, states, strict=True):
        cells = [fit(row.get(name, ""), longest) or " " for name in names]
        rows.append((str(item.index + 1), *cells, fit(_status(item), _STATUS)))
        is_whole = all(
            name in names
            and len(name) <= _NAME
            and len(text) <= longest
            and (name == _STATE or is_short(name, text))
            for name, text in row.items()
        )
        # Bare, a number would read as the text that the schema asks for.
        texts = _texts(item) & item.args.keys()
        is_whole &= all(isinstance(item.args[name], str) for name in texts)
        if is_whole and (not state or row.get(_STATE) == state):
            whole.add(item.index)
    return Table(tuple(rows), frozenset(whole))


def _heading(name: str) -> str:
    """Return the name of an argument, quoted where a column of ours has the same."""
    return fit(f'"{name}"' if name in {"#", "Status", _STATE} else name, _NAME)


def _status(item: Item) -> str:
    """Return where a call stands, in a word or two."""
    said = STATE_NAMES[item.state]
    count = counted_votes(item)
    if item.is_pending and count.need > 1:
        said = f"{count.have} of {count.need}"
    if item.is_pending and item.tier is Tier.ESCALATE:
        said += ", escalated"
    if item.has_failed:
        said = "failed"
    return f"{said}, edited" if item.edit is not None else said


def _warnings(frame: Frame) -> list[Block]:
    hidden = [one.index for one in frame.approval.items if has_hidden(all_text(one))]
    mixed = [
        one.index for one in frame.approval.items if homoglyph_warnings(all_text(one))
    ]
    lines: list[Template | Plain] = []
    if hidden:
        lines += [
            template("⚠️ *Hidden characters*, shown as ⟦U+…⟧, are in"),
            untrusted(calls_named(hidden)),
        ]
    if mixed:
        lines += [
            template("⚠️ *Look-alike letters* of several alphabets are in"),
            untrusted(calls_named(mixed)),
        ]
    return [context(*lines, block_id=frame.block_id("odd"))] if lines else []


def _reasons(frame: Frame) -> list[Block]:
    """Say why calls need what they need, and which; nothing where that says nothing."""
    found: dict[str, list[int]] = {}
    for item in frame.approval.items:
        # The first reason is the tier that the policy lists, which all of them have.
        for reason in item.reasons[1:]:
            found.setdefault(reason, []).append(item.index)
    lines: list[Plain | Template] = []
    for reason, indexes in [*found.items()][:_REASONS]:
        is_all = len(indexes) == len(frame.approval.items)
        of = "" if is_all else f" ({calls_named(indexes)})"
        lines.append(untrusted(fit(reason, _REASON) + fit(of, _REASON)))
    if more := len(found) - len(lines):
        lines.append(template("and {n} more reasons: open the calls", n=more))
    return [context(*lines, block_id=frame.block_id("why"))] if lines else []


def calls_named(indexes: Iterable[int]) -> str:
    """Return "call 4", or "calls 1-3, 7"."""
    named = numbers(indexes)
    return f"call {named}" if named.isdecimal() else f"calls {named}"


def numbers(indexes: Iterable[int]) -> str:
    """Return calls by the numbers that people see: "1-3, 7"."""
    return index_ranges(index + 1 for index in indexes).replace(",", ", ")
