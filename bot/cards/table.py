"""Render many calls of one tool as a table: a row per call, a column per argument.

Slack accepts one table in a message, of 100 rows and 20 columns. Cells are plain text.
Short calls get the room that they need, and the long ones share the rest. A call that
is cut is marked, and can be decided only from the full view: people must not approve
text that they could not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyturn.bot.cards.diff import state_text
from keyturn.bot.cards.frame import shares
from keyturn.bot.cards.listing import is_short, named_values, schema_order
from keyturn.bot.cards.needs import counted_votes
from keyturn.bot.cards.states import STATE_NAMES
from keyturn.bot.text import ELLIPSIS, Template, fit, joined, on_one_line, template
from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.gestures import LONGEST_ROW, index_ranges
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Tier
from keyturn.sandbox.blockkit import limits

TABLE_CHARS = 5_500
"""Characters in all cells; the rest of the card's budget is for the text around it."""
_STATUS = 18
"""Maximum length of a status."""
_MARK = 3
"""Maximum length of the sign before a number."""

_CELLS = (LONGEST_ROW, 60, 40, 24, 12)
"""Cell lengths to try for a row that must be cut; the first that fits is used."""
_MAX_ARGUMENTS = limits.TABLE_COLUMNS - 1
_NAME = 40
_STATE = "State seen"


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a table, its heading first, then the calls in order.

    ``whole`` are the indexes of the calls that are shown in full.
    """

    rows: tuple[tuple[str, ...], ...]
    whole: frozenset[int]


def table_of(approval: Approval) -> Table:
    """Return the table of an approval, cut to fit on a card."""
    values = [cell_values(item) for item in approval.items]
    names = [*dict.fromkeys(name for row in values for name in row)]
    states = [state_text(item).replace("\n", " · ") for item in approval.items]
    if any(states):
        names = [*names[: _MAX_ARGUMENTS - 1], _STATE]
        # The state would hide an argument of that name; the call is then not whole.
        values = [
            {**row, _STATE: state} if _STATE not in row else row
            for row, state in zip(values, states, strict=True)
        ]
    names = names[:_MAX_ARGUMENTS]
    heading = ("#", *map(_heading, names))
    # Blank means absent: an empty text has its quotes.
    texts = [[row.get(name) or " " for name in names] for row in values]
    firsts = [_first(item) for item in approval.items]
    # Pending calls get their room first, independently of the other calls' results.
    ended = [
        0 if item.is_pending else len(first) - len(str(item.index + 1))
        for item, first in zip(approval.items, firsts, strict=True)
    ]
    lengths = [
        _MARK + len(first) - status + sum(map(len, row))
        for first, status, row in zip(firsts, ended, texts, strict=True)
    ]
    free = TABLE_CHARS - sum(map(len, heading))
    rooms = shares(free, lengths)
    more = shares(free - sum(rooms), ended)
    rows: list[tuple[str, ...]] = [heading]
    whole: set[int] = set()
    for item, first, row, room in zip(
        approval.items,
        firsts,
        texts,
        map(sum, zip(rooms, more, strict=True)),
        strict=True,
    ):
        cells = _cut(row, room - _MARK - len(first))
        rows.append((first, *cells))
        is_whole = _is_whole(item, values[item.index], names, states[item.index])
        if cells == row and is_whole:
            whole.add(item.index)
    return Table(tuple(rows), frozenset(whole))


def cell_values(item: Item) -> dict[str, str]:
    """Return the readable arguments by name.

    A text that reads as another type, such as ``78291``, needs no quotes if the schema
    declares the argument as a string.
    """
    shown = dict(named_values(item.args, item.redact, schema_order(item)))
    bare = {
        name: text
        for name, text in item.args.items()
        if isinstance(text, str) and shown.get(name) == f'"{text}"'
        # Blanks at the edges and empty texts would be invisible without quotes, and
        # `HIDDEN` would read as a value that the policy hides.
        if text and text.strip() == text and text != HIDDEN
    }
    shown |= {name: bare[name] for name in bare.keys() & _texts(item)}
    return {name: on_one_line(text) for name, text in shown.items()}


def _texts(item: Item) -> frozenset[str]:
    declared = (item.args_schema or {}).get("properties")
    return frozenset(
        name
        for name, schema in (declared.items() if isinstance(declared, dict) else ())
        if isinstance(schema, dict) and schema.get("type") == "string"
    )


def _cut(texts: list[str], room: int) -> list[str]:
    """Return cells with as much of these texts as fits.

    If even the shortest cells do not fit, the last ones are dropped.
    """
    cells = texts
    for longest in _CELLS:
        cells = [_cell(text, longest) for text in texts]
        if sum(map(len, cells)) <= room:
            return cells
    for place in reversed(range(len(cells))):
        if sum(map(len, cells)) <= room:
            break
        cells[place] = ELLIPSIS
    return cells


def _cell(text: str, longest: int) -> str:
    """Return a cell; a number, an id or another single word is never cut."""
    return fit(text, longest) if " " in text or len(text) <= longest else ELLIPSIS


def _is_whole(
    item: Item, row: Mapping[str, str], names: Sequence[str], state: str
) -> bool:
    """Return whether a row without cuts shows every character of its call."""
    is_whole = all(
        name in names
        and len(name) <= _NAME
        and (name == _STATE or is_short(name, text, LONGEST_ROW))
        for name, text in row.items()
    )
    # Without quotes, a number would read as the string that the schema declares.
    texts = _texts(item) & item.args.keys()
    is_whole &= all(isinstance(item.args[name], str) for name in texts)
    return is_whole and (not state or row.get(_STATE) == state)


def _heading(name: str) -> str:
    """Return the name of an argument, quoted if a fixed column has the same name."""
    return fit(f'"{name}"' if name in {"#", _STATE} else name, _NAME)


def _first(item: Item) -> str:
    """Return the number of a call, and its state unless it is just pending.

    In the first column, as a phone shows only three or four of them.
    """
    number, status = str(item.index + 1), _status(item)
    return f"{number} · {fit(status, _STATUS)}" if status else number


def _status(item: Item) -> str:
    """Return the state of a call in a word or two; "" while it is just pending."""
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


def numbers_ref(indexes: Iterable[int]) -> Template:
    """Return the same as `numbers`, for a sentence in markup."""
    parts: list[Template] = []
    for part in index_ranges({index + 1 for index in indexes}).split(","):
        first, _, last = part.partition("-")
        if last:
            parts.append(template("{a}-{b}", a=int(first), b=int(last)))
        else:
            parts.append(template("{a}", a=int(first)))
    return joined(", ", parts)


def numbers(indexes: Iterable[int]) -> str:
    """Return calls by their visible numbers: "1-3, 7"."""
    return index_ranges(index + 1 for index in indexes).replace(",", ", ")
