"""Render many calls of one tool as a table: a row per call, a column per argument.

Slack takes one table in a message, of 100 rows and 20 columns. Cells are plain text.
What does not fit into a cell is cut and marked, and its call is then decided from the
full view only: nobody approves what they could not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twokey.bot.cards.diff import state_text
from twokey.bot.cards.listing import is_short, named_values, schema_order
from twokey.bot.cards.states import STATE_NAMES
from twokey.bot.cards.votes import counted_votes
from twokey.bot.text import fit
from twokey.gateway.approvals.batch_deciding import index_ranges
from twokey.gateway.approvals.evidence import HIDDEN
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.tiers import Tier
from twokey.sandbox.blockkit import limits

TABLE_CHARS = 5_500
"""Characters in all cells; the rest of the card's budget is for what is around it."""
_STATUS = 18
"""How long a status may be."""
_FIRST = 3 + 3 + len(" · ") + _STATUS
"""How long the first cell may be: a mark, the number, the status.

It is reserved for each call, so that whether a call is shown whole does not depend on
where any of them stands.
"""

_CELLS = (60, 40, 24, 12)
"""How long a cell may be; the first with which the table fits."""
_MAX_ARGUMENTS = limits.TABLE_COLUMNS - 1
_NAME = 40
_STATE = "State seen"


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a table, its heading first, then the calls in order.

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
    free = TABLE_CHARS - _FIRST * (len(values) + 1)
    for longest in _CELLS:
        table = _cut(approval, shown, values, states, longest)
        if sum(len(cell) for row in table.rows for cell in row[1:]) <= free:
            return table
    # At the shortest cells the columns on the right have to go, and with them nothing
    # is whole.
    few = free // ((len(values) + 1) * _CELLS[-1]) - 1
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
        # Blanks at the edges, and nothing at all, would not be seen without quotes;
        # and the last would read as a value that the policy hides.
        if text and text.strip() == text and text != HIDDEN
    }
    return {**shown, **{name: bare[name] for name in bare.keys() & _texts(item)}}


def _texts(item: Item) -> frozenset[str]:
    declared = (item.args_schema or {}).get("properties")
    return frozenset(
        name
        for name, schema in (declared.items() if isinstance(declared, dict) else ())
        if isinstance(schema, dict) and schema.get("type") == "string"
    )


def _cut(
    approval: Approval,
    names: Sequence[str],
    values: Sequence[dict[str, str]],
    states: Sequence[str],
    longest: int,
) -> Table:
    rows = [("#", *map(_heading, names))]
    whole: set[int] = set()
    for item, row, state in zip(approval.items, values, states, strict=True):
        # Blank is what is not there: an empty text has its quotes.
        cells = [fit(row[name], longest) if row.get(name) else " " for name in names]
        rows.append((_first(item), *cells))
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
    return fit(f'"{name}"' if name in {"#", _STATE} else name, _NAME)


def _first(item: Item) -> str:
    """Return the number of a call, and where it stands unless it only waits.

    In the first column, as a phone shows no more than three or four of them.
    """
    number, status = str(item.index + 1), _status(item)
    return f"{number} · {fit(status, _STATUS)}" if status else number


def _status(item: Item) -> str:
    """Return where a call stands, in a word or two; "" while it just waits."""
    said = "" if item.is_pending else STATE_NAMES[item.state]
    count = counted_votes(item)
    if item.is_pending and item.tier is Tier.ESCALATE:
        said = "escalated"
    if item.is_pending and count.need > 1:
        said = f"{count.have} of {count.need}"
    if item.has_failed:
        said = "failed"
    edited = ["edited"] if item.edit is not None else []
    return ", ".join([*([said] if said else []), *edited])


def calls_named(indexes: Iterable[int]) -> str:
    """Return "call 4", or "calls 1-3, 7"."""
    named = numbers(indexes)
    return f"call {named}" if named.isdecimal() else f"calls {named}"


def numbers(indexes: Iterable[int]) -> str:
    """Return calls by the numbers that people see: "1-3, 7"."""
    return index_ranges(index + 1 for index in indexes).replace(",", ", ")
