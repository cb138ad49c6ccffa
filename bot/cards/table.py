"""Show many calls: a table of them, their totals, and those to look at first.

Slack accepts one table in a message, of 100 rows and 20 columns. Cells are plain text.
Short calls get the room that they need, and the long ones share the rest. A call that
is cut is marked, and can be decided only from the full view: people must not approve
text that they could not see.

Rows that deserve attention are on top, with a mark. Only the rows move: every call
keeps its number, and the signed data keeps the order of the record.

Precedents are earlier calls with the same effect. A banner names the pending calls with
an earlier call. Small print names the deciders, rejected calls and the totals of a
call's windows. No argument is repeated, and a reviewer's words are shown only to
reviewers of the same agent.

Marks are described in words for cards, forms and confirmations. The names of arguments
are untrusted: they are on one line and cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from typing import LiteralString

from keyturn.bot.blocks import Block, notes, section
from keyturn.bot.cards.frame import Frame, is_table, shares
from keyturn.bot.cards.listing import (
    all_text,
    is_short,
    named_values,
    needs_a_look,
    one_line,
    state_text,
)
from keyturn.bot.cards.refs import calls_named, when
from keyturn.bot.cards.states import (
    STATE_NAMES,
    UNREVIEWED_STATE_NAMES,
    counted_votes,
    without_tier,
)
from keyturn.bot.cards.warnings import homoglyph_warnings, unlimited
from keyturn.bot.text import (
    ELLIPSIS,
    NAME,
    NOTE,
    Plain,
    Template,
    fit,
    joined,
    label,
    on_one_line,
    reveal,
    template,
    untrusted,
)
from keyturn.gateway.approvals.gestures import LONGEST_ROW
from keyturn.gateway.approvals.invisible_characters import has_hidden
from keyturn.gateway.approvals.precedents import Precedent, PrecedentKind, WindowTotal
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.repeating import args_hash, doubled, other_calls
from keyturn.gateway.metrics.report import short_duration
from keyturn.gateway.policy.formats import Total
from keyturn.gateway.policy.marks import Mark, marks_of, rows_of
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.sandbox.blockkit import limits

TABLE_CHARS = 5_200
"""Characters in the heading and the arguments.

Numbers and states do not count, so that the end of one call never cuts another.
"""
_STATUS = 18
"""Maximum length of a status."""

_CELLS = (LONGEST_ROW, 60, 40, 24, 12)
"""Cell lengths to try for a row that must be cut; the first that fits is used."""
_NAME = 40
_STATE, _STATE_HEADING = "", "State seen"
"""Key and heading of the last column; an argument's name is never shown as empty."""


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a table, its heading first, then the calls in order.

    ``whole`` are the indexes of the calls that are shown in full, and ``columns`` the
    settings of the columns.
    """

    rows: tuple[tuple[str, ...], ...]
    whole: frozenset[int]
    columns: tuple[Block, ...]


def table_of(approval: Approval) -> Table:
    """Return the table of an approval, cut to fit on a card."""
    values = [cell_values(item) for item in approval.items]
    names = [*dict.fromkeys(name for row in values for name in row)]
    states = [state_text(item).replace("\n", " · ") for item in approval.items]
    if any(states):
        names = [*names[: limits.TABLE_COLUMNS - 2], _STATE]
        values = [
            {**row, _STATE: state} for row, state in zip(values, states, strict=True)
        ]
    names = names[: limits.TABLE_COLUMNS - 1]
    heading = ("#", *map(_heading, names))
    # Blank means absent: an empty text has its quotes.
    texts = [[row.get(name) or " " for name in names] for row in values]
    free = TABLE_CHARS - sum(map(len, heading))
    rooms = shares(free, [sum(map(len, row)) for row in texts])
    rows: list[tuple[str, ...]] = [heading]
    whole: set[int] = set()
    for item, row, room in zip(approval.items, texts, rooms, strict=True):
        cells = _cut(row, room)
        rows.append((_first(item), *cells))
        if cells == row and _is_whole(values[item.index], names):
            whole.add(item.index)
    columns = (_column(approval.items, name) for name in ("#", *names))
    return Table(tuple(rows), frozenset(whole), tuple(columns))


def _column(items: Sequence[Item], name: str) -> Block:
    """Return the settings of a column: numbers are at the right edge."""
    values = [item.args[name] for item in items if name in item.args]
    is_number = bool(values) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    )
    # Otherwise Slack clips a long cell, and people would approve text that they cannot
    # see.
    return {"is_wrapped": True, **({"align": "right"} if is_number else {})}


def cell_values(item: Item) -> dict[str, str]:
    """Return the arguments by name, each on one line."""
    return {name: on_one_line(text) for name, text in named_values(item)}


def _cut(texts: list[str], room: int) -> list[str]:
    """Return cells with as much of these texts as fits."""
    for longest in _CELLS:
        cells = [_cell(text, longest) for text in texts]
        if sum(map(len, cells)) <= room:
            return cells
    return [ELLIPSIS] * len(texts)


def _cell(text: str, longest: int) -> str:
    """Return a cell; a number, an id or another single word is never cut."""
    return fit(text, longest) if " " in text or len(text) <= longest else ELLIPSIS


def _is_whole(row: Mapping[str, str], names: Sequence[str]) -> bool:
    """Return whether a row without cuts shows every character of its call."""
    return all(
        name in names
        and len(name) <= _NAME
        and (name == _STATE or is_short(name, text, LONGEST_ROW))
        for name, text in row.items()
    )


def _heading(name: str) -> str:
    """Return the name of an argument, quoted if a fixed column has the same name."""
    if name == _STATE:
        return _STATE_HEADING
    return fit(f'"{name}"' if name in {"#", _STATE_HEADING} else name, _NAME)


def _first(item: Item) -> str:
    """Return the number of a call, and its state unless it is just pending.

    In the first column, as a phone shows only three or four of them.
    """
    count, said = counted_votes(item), list[str]()
    if not item.is_pending:
        names = UNREVIEWED_STATE_NAMES if item.is_auto_approved else STATE_NAMES
        said.append("failed" if item.has_failed else names[item.state])
    elif count.need > 1:
        said.append(f"{count.have} of {count.need}")
    elif item.tier is Tier.ESCALATE:
        said.append("escalated")
    if item.edit is not None:
        said.append("edited")
    number = str(item.index + 1)
    return f"{number} · {fit(', '.join(said), _STATUS)}" if said else number


MAX_IN_HEADER = 60
"""Maximum characters of a total in a header; a longer one is only below it."""


def totals_of(approval: Approval) -> list[tuple[str, Total]]:
    """Return the totals that the policy permits, over the current arguments.

    Each has a name: of its argument, and of its tool if the card has several tools.
    """
    tools: dict[str, list[Item]] = {}
    for item in approval.items:
        tools.setdefault(item.tool, []).append(item)
    found: list[tuple[str, Total]] = []
    for tool, items in tools.items():
        totals = rows_of(items).totals if len(items) > 1 else ()
        prefix = f"{fit(one_line(tool), NAME)}: " if len(tools) > 1 else ""
        found += [(f"{prefix}{total.name}", total) for total in totals]
    return found


def header_total(approval: Approval) -> str:
    """Return the first total for a header; "" if there is none or it is long."""
    for name, total in totals_of(approval)[:1]:
        # A bare number needs the argument's name.
        text = f"{name} {total.text()}" if total.format == "number" else total.text()
        text += (
            f" in {len(total.numbers)} of them" if total.hidden or total.without else ""
        )
        is_of_all = len({item.tool for item in approval.items}) == 1
        if is_of_all and total.numbers and len(text) <= MAX_IN_HEADER:
            return text
    return ""


def sums(totals: Sequence[tuple[str, Total]], indexes: AbstractSet[int]) -> str:
    """Return the sums of these calls by total, with the number of omitted calls."""
    parts: list[str] = []
    for name, total in totals:
        counted = indexes & {*total.numbers}
        if counted:
            left = len(indexes) - len(counted)
            without = f" (without {left} of them)" if left else ""
            parts.append(f"{name} {total.text(counted)}{without}")
    return " · ".join(parts)


_REPEATED = (PrecedentKind.DONE, PrecedentKind.WAITING)
_REASONS = 3
_MARKS = 6
"""Maximum lines about marks."""
_MOST_TOTALS, _TOTALS_OF_FEW = 6, 3
"""Maximum lines about totals, on a card with a table and without one."""


def is_remarkable(item: Item) -> bool:
    """Return whether a call has a warning or an opinion."""
    return not (
        item.original_args is None and item.revoked is None and item.triage is None
    )


def noticed(approval: Approval) -> frozenset[int]:
    """Return the calls that deserve a reviewer's attention.

    These have a mark, a stricter evaluation or another reason, an earlier or duplicate
    call, odd characters, or a warning.
    """
    found = {mark.index for mark in marks_of(approval)} | _stricter(approval)
    found |= {item.index for group in doubled(approval) for item in group}
    return frozenset(
        item.index
        for item in approval.items
        if item.index in found
        or needs_a_look(item)
        or is_remarkable(item)
        or (
            item.is_pending
            and any(other_calls(approval, item.past, kind) for kind in _REPEATED)
        )
    )


def mark(item: Item, found: frozenset[int]) -> str:
    """Return the sign before the number of a call; "" for none."""
    if item.state is ItemState.IN_DOUBT and not item.has_failed:
        return "❓ "
    if item.has_failed or item.state is ItemState.FAILED:
        return "❌ "
    return "⚠️ " if item.index in found else ""


def in_order(approval: Approval, found: frozenset[int]) -> list[Item]:
    """Return the calls in the order of their rows: those that need a look first."""
    needs_people, failed = ItemState.IN_DOUBT, ItemState.FAILED
    return sorted(
        approval.items,
        key=lambda item: (
            item.state is not needs_people,
            item.state is not failed,
            item.index not in found,
            item.index,
        ),
    )


def notices(frame: Frame) -> list[Block]:
    """Return the small print above a table: totals, and reasons."""
    return [*totals(frame), *_reasons(frame)]


def _stricter(approval: Approval) -> frozenset[int]:
    """Return the calls that need more, or for another reason, than most of them."""
    judged = Counter((item.tier, item.reasons) for item in approval.items)
    # Among equals the less strict one, so that the others are found.
    (tier, reasons), _ = max(
        judged.items(), key=lambda one: (one[1], -one[0][0].rank, -len(one[0][1]))
    )
    return frozenset(
        item.index
        for item in approval.items
        if item.tier.rank > tier.rank or not {*item.reasons} <= {*reasons}
    )


def totals(frame: Frame) -> list[Block]:
    """Return totals by state, and the calls that they omit."""
    approval = frame.approval
    lines: list[Plain | Template] = []
    for place, (name, total) in enumerate(totals_of(approval)):
        parts = _by_state(approval, total)
        # The header has the first total, unless it is long; its parts are listed here.
        is_in_header = place == 0 and bool(header_total(approval))
        if len(parts) > is_in_header:
            text = f"{name}: {' · '.join(parts)}"
            # A number is never cut.
            is_long = len(reveal(text)) > NOTE
            text = fit(f"{name}: too long to show", NOTE) if is_long else text
            lines.append(untrusted(text))
        if left := _left_out(total):
            lines.append(untrusted(fit(f"Not in the total of {name}: {left}", NOTE)))
    most = _MOST_TOTALS if is_table(approval) else _TOTALS_OF_FEW
    more = len(lines) - most
    rest = [template("More about totals is not shown: {n}", n=more)] if more > 0 else []
    return notes([*lines[:most], *rest])


def _by_state(approval: Approval, total: Total) -> list[str]:
    states = {item.index: item.state for item in approval.items}
    return [
        f"{total.text(indexes)} {STATE_NAMES[state]}"
        for state in ItemState
        if (indexes := [one for one in total.numbers if states[one] is state])
    ]


def _left_out(total: Total) -> str:
    parts = (
        (total.hidden, "hidden by policy"),
        (total.without, "no number"),
    )
    return ", ".join(f"{calls_named(one).text} ({why})" for one, why in parts if one)


def marks(frame: Frame) -> list[Block]:
    """Return the reasons of the marks as a paragraph; empty without marks."""
    lines = mark_lines(frame.approval)
    if len(lines) > _MARKS:
        lines[_MARKS:] = [f"and {len(lines) - _MARKS} more: open the calls"]
    return [section(untrusted("\n".join(f"⚠️ {one}" for one in lines)))] if lines else []


def _reasons(frame: Frame) -> list[Block]:
    """List the reasons for the requirements, and their calls."""
    found: dict[str, list[int]] = {}
    for item in frame.approval.items:
        # The first reason is the policy's tier, which all of them have.
        for reason in map(without_tier, item.reasons[1:]):
            found.setdefault(reason, []).append(item.index)
    lines: list[Plain | Template] = []
    for reason, indexes in [*found.items()][:_REASONS]:
        is_all = len(indexes) == len(frame.approval.items)
        of = "" if is_all else f" ({calls_named(indexes).text})"
        lines.append(untrusted(fit(reason, NOTE) + fit(of, NAME)))
    if more := len(found) - len(lines):
        lines.append(template("and {n} more reasons: open the calls", n=more))
    return notes(lines)


MOST_TEXT = 900
"""Maximum characters of all precedents on a card."""

_MOST_REPEATED = 3
"""Maximum calls of a batch in the banner."""
_PAIR = 2
_WINDOWS = 2

_DONE: dict[ItemState, LiteralString] = {
    ItemState.PENDING: "waits on another card since {at}",
    ItemState.AUTHORIZED: "was approved {at} and may run at any moment",
    ItemState.EXECUTING: "was approved {at} and is running",
    ItemState.HANDING_OVER: "was approved {at} and is being handed over",
    ItemState.HANDED_OVER: "was handed over {at}",
    ItemState.EXECUTED: "ran {at}",
    ItemState.IN_DOUBT: "may have run {at}",
    ItemState.REJECTED: "was rejected before, {at}",
}
_BY_POLICY: LiteralString = "was let run by the policy {at}"


def precedents(frame: Frame) -> list[Block]:
    """Return the banner, and the small print under it; empty without precedents."""
    approval = frame.approval
    waiting = [item for item in approval.items if item.is_pending]
    done = [
        (item, found[0])
        for item in waiting
        for found in (
            other_calls(approval, item.past) or _elsewhere(approval, item),
            _rejected(item),
        )
        if found and not (approval.is_batch and found[0].state is ItemState.PENDING)
    ]
    blocks: list[Block] = []
    if done:
        lines = [_line(approval, item, one) for item, one in done[:_MOST_REPEATED]]
        more = len(done) - len(lines)
        if more:
            lines.append(template("⚠️ {n} more were done or asked before", n=more))
        blocks.append(section(joined("\n", lines)))
    same = same_calls(approval)
    others = [item.index for item in waiting if _elsewhere(approval, item)]
    if others and approval.is_batch:
        named = fit(calls_named(others).text.capitalize(), NOTE)
        same.append(f"{named}: the same is waiting on another card.")
    if same:
        text = label("\n".join(f"⚠️ {line}" for line in same))
        blocks.append(section(text))
    # A batch has room for its banner only; Full details of a call have the rest.
    is_alone = waiting and not approval.is_batch
    small = _small_print(approval, waiting[0]) if is_alone else []
    return [*blocks, *notes(small)]


def same_calls(approval: Approval, among: Container[int] | None = None) -> list[str]:
    """Name the duplicate pending calls of a card, which may be a mistake.

    Args:
        approval: the calls of the card.
        among: indexes of the calls to check; None for all.
    """
    lines: list[str] = []
    for group in doubled(approval):
        items = [one for one in group if among is None or one.index in among]
        if len(items) < _PAIR:
            continue
        *first, last = (f"{one.index + 1}" for one in items)
        alike = {args_hash(one.tool, one.args) for one in items}
        names = ", ".join(one.removeprefix("args.") for one in items[0].past.same_by)
        what = f"have the same {names}" if names else "have the same effect"
        said = "are the same call" if len(alike) == 1 else what
        named = fit(", ".join(first), NAME)
        lines.append(fit(f"Calls {named} and {last} {said}.", NOTE))
    more = len(lines) - _MOST_REPEATED
    rest = [f"{more} more groups of calls are the same."] if more > 0 else []
    return [*lines[:_MOST_REPEATED], *rest]


def happened(precedent: Precedent) -> Template:
    """Return how an earlier call ended, to follow "the same call"."""
    is_of_policy = not precedent.by and precedent.state is ItemState.AUTHORIZED
    sentence = _BY_POLICY if is_of_policy else _DONE[precedent.state]
    return template(sentence, at=when(precedent.at_ms))


def _line(approval: Approval, item: Item, precedent: Precedent) -> Template:
    said = template("*The same call* {past}", past=happened(precedent))
    if precedent.args_hash != args_hash(item.tool, item.args):
        like: LiteralString = (
            "*A call with the same effect* {past} with other arguments"
        )
        said = template(like, past=happened(precedent))
    if not approval.is_batch:
        return template("⚠️ {said}", said=said)
    return template("⚠️ *Call {n}:* {said}", n=item.index + 1, said=said)


def _small_print(approval: Approval, item: Item) -> list[Template | Plain]:
    done, rejected = other_calls(approval, item.past), _rejected(item)
    parts: list[Template | Plain] = []
    if done and done[0].by:
        parts.append(_people(approval, done[0], "Approved"))
    if rejected:
        parts.append(_people(approval, rejected[0], "Rejected before"))
    totals = [one for one in item.past.totals if one.others_micro]
    return [*parts, *(_total(one) for one in totals[:_WINDOWS])]


def _elsewhere(approval: Approval, item: Item) -> tuple[Precedent, ...]:
    return other_calls(approval, item.past, PrecedentKind.WAITING)


def _rejected(item: Item) -> tuple[Precedent, ...]:
    return item.past.of_kind(PrecedentKind.REJECTED)


def _people(approval: Approval, precedent: Precedent, verb: str) -> Plain:
    """Name people in plain text: a mention would notify them of another call."""
    names = fit(", ".join(one.name or one.user for one in precedent.by), NAME)
    said = f"{verb} by {names}"
    if precedent.agent != approval.agent:
        said += f" for the agent {fit(precedent.agent, NAME)}"
    # Another agent may have other reviewers, whose words are not for these readers.
    elif precedent.reason:
        said += f": {fit(precedent.reason, NOTE)}"
    return untrusted(said)


def _total(total: WindowTotal) -> Plain:
    amount = Decimal(total.others_micro) / MICRO
    shown = f"{amount:,.2f}".removesuffix(".00")
    what = "other calls" if total.is_count else "in other calls"
    by = f"Same {total.by.removeprefix('args.')}, last" if total.by else "Last"
    span = short_duration(total.within_ms)
    return label(fit(f"{by} {span}: {shown} {what} ({total.window})", NOTE))


def _mark_text(one: Mark) -> str:
    """Describe a mark without its call: untrusted text."""
    name, other = map(_named, (one.name, one.other))
    calls = fit(calls_named(one.like).text, NAME) if one.like else ""
    return one.kind.format(
        name=name,
        other=other,
        of=f" of the same {other}" if one.other else "",
        usual=one.usual,
        calls=calls,
        like=f": see {calls}" if calls else "",
    )


def _named(name: str) -> str:
    """Return the name of an argument; prose in a name is quoted."""
    # `marks` writes "host of link" for a part of an argument.
    part, _, whole = name.rpartition(" of ")
    is_plain = part in {"", "host", "domain"} and not set(whole) & set(" \n\t")
    shown = fit(one_line(name), _NAME)
    return shown if is_plain else f'"{shown}"'


_SIGHTS: tuple[tuple[str, Callable[[Item], object]], ...] = (
    ("hidden characters, shown as ⟦U+…⟧", lambda item: has_hidden(all_text(item))),
    ("look-alike letters", lambda item: homoglyph_warnings(all_text(item))),
    ("UPDATE or DELETE without WHERE", unlimited),
)
"""Marks of a call by its own text, without a comparison with the other calls."""


def marks_by_text(approval: Approval) -> dict[str, list[int]]:
    """Return the calls with each mark: untrusted texts, and indexes."""
    found: dict[str, list[int]] = {}
    for mark in marks_of(approval):
        found.setdefault(_mark_text(mark), []).append(mark.index)
    for text, has_it in _SIGHTS:
        if calls := [item.index for item in approval.items if has_it(item)]:
            found[text] = calls
    return found


def mark_lines(approval: Approval, among: Container[int] | None = None) -> list[str]:
    """Describe the marks of a card, one line for each kind: untrusted texts.

    Args:
        approval: the calls of the card.
        among: indexes of the calls to describe; None for all.
    """
    lines: list[str] = []
    for text, indexes in marks_by_text(approval).items():
        if calls := [one for one in indexes if among is None or one in among]:
            named = fit(calls_named(calls).text, NAME).capitalize()
            lines.append(fit(f"{named}: {text}.", 3 * NAME))
    return lines
