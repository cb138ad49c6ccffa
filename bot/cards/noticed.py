"""Find the calls of a table that a reviewer should look at first, and say why.

They stand on top of the table with a mark. Only the rows move: every call keeps its
number, and what is signed keeps the order of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from keyturn.bot.blocks import Block, context
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.homoglyphs import homoglyph_warnings
from keyturn.bot.cards.listing import all_text, needs_a_look, one_line
from keyturn.bot.cards.needs import without_tier
from keyturn.bot.cards.sql import unlimited
from keyturn.bot.cards.states import STATE_NAMES
from keyturn.bot.cards.table import calls_named
from keyturn.bot.cards.totals import (
    header_total,
    total_text,
    totals_by_tool,
    totals_of,
)
from keyturn.bot.text import Plain, Template, fit, label, reveal, template, untrusted
from keyturn.gateway.approvals.invisible_characters import has_hidden
from keyturn.gateway.approvals.precedents import PrecedentKind
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.repeating import doubled, other_calls
from keyturn.gateway.policy.formats import MOST_DIGITS, Total
from keyturn.gateway.protocol.states import ItemState

_REPEATED = (PrecedentKind.DONE, PrecedentKind.WAITING)
_REASONS = 3
_REASON = 120
_CALLS = 80
_TOTAL = 200
_TOOL = 60
_ROOM = 350
"""Characters of all lines about totals on a card without a table."""


def is_remarkable(item: Item) -> bool:
    """Return whether a warning or an opinion belongs to a call."""
    return not (
        item.original_args is None and item.revoked is None and item.triage is None
    )


def noticed(approval: Approval) -> frozenset[int]:
    """Return the calls that differ from the others in what a reviewer looks for.

    A number far from the others, an evaluation that is stricter or has another reason,
    a call that was done before or waits twice, odd characters, or a warning of its own.
    """
    found = {index for total in totals_of(approval) for index in total.far}
    found |= _stricter(approval)
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
    """Return the sign that stands before the number of a call; "" for none."""
    if item.state is ItemState.IN_DOUBT and not item.has_failed:
        return "❓ "
    if item.has_failed or item.state is ItemState.FAILED:
        return "❌ "
    return "⚠️ " if item.index in found else ""


def in_order(approval: Approval, found: frozenset[int]) -> list[Item]:
    """Return the calls as their rows stand: those that need a look first."""
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
    """Return what is said above a table: totals, and why calls are marked."""
    return [*totals(frame), *_warnings(frame), *_reasons(frame)]


def _stricter(approval: Approval) -> frozenset[int]:
    """Return the calls that need more, or for another reason, than most of them."""
    judged = Counter((item.tier, item.reasons) for item in approval.items)
    # Among equals the one that asks for less, so that the others are found.
    (tier, reasons), _ = max(
        judged.items(), key=lambda one: (one[1], -one[0][0].rank, -len(one[0][1]))
    )
    return frozenset(
        item.index
        for item in approval.items
        if item.tier.rank > tier.rank or not {*item.reasons} <= {*reasons}
    )


def totals(frame: Frame) -> list[Block]:
    """Return totals by state, and which calls are not in them."""
    found = totals_of(frame.approval)
    lines: list[Plain | Template] = []
    for place, total in enumerate(found):
        parts = _by_state(frame.approval, total)
        # The header has the first total, unless it is long; what it is of is said here.
        is_in_header = place == 0 and bool(header_total(frame.approval))
        if len(parts) > is_in_header:
            lines.append(label(_whole(f"{total.name}: {' · '.join(parts)}")))
        if left := _left_out(total):
            lines.append(
                label(fit(f"Not in the total of {total.name}: {left}", _CALLS))
            )
    if not is_table(frame.approval):
        lines = _fitting([*lines, *_of_tools(frame.approval)])
    return [context(*lines)] if lines else []


def _fitting(lines: Sequence[Plain | Template]) -> list[Plain | Template]:
    """Return the first of these lines, as far as a card without a table has room."""
    left, shown = _ROOM, list[Plain | Template]()
    for line in lines:
        left -= len(reveal(line.text))
        if left >= 0:
            shown.append(line)
    more = len(lines) - len(shown)
    rest = [template("More about totals is not shown: {n}", n=more)] if more else []
    return [*shown, *rest]


def _of_tools(approval: Approval) -> list[Plain]:
    """Return the totals of each tool, on a card with calls of several."""
    texts = [
        f"{fit(one_line(tool), _TOOL)}: {total_text(total)}"
        for tool, totals in totals_by_tool(approval)
        for total in totals
        if total.numbers
    ]
    return [untrusted(_whole(text)) for text in texts]


def _whole(text: str) -> str:
    """Return a total; a number is never cut: what is so long is left out, and said."""
    name, _, _ = text.partition(": ")
    return text if len(text) <= _TOTAL else f"{name}: too long to show"


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
        (total.too_long, f"over {MOST_DIGITS} digits"),
    )
    return ", ".join(f"{calls_named(one)} ({why})" for one, why in parts if one)


def _warnings(frame: Frame) -> list[Block]:
    items = frame.approval.items
    hidden = [one.index for one in items if has_hidden(all_text(one))]
    mixed = [one.index for one in items if homoglyph_warnings(all_text(one))]
    without = [one.index for one in items if unlimited(one)]
    lines: list[Template | Plain] = []
    for total in totals_of(frame.approval):
        if total.far:
            far = fit(f"{total.name} of {calls_named(total.far)}", _CALLS)
            said = f"⚠️ Far from the others: {far}; the median is {total.usual}."
            lines.append(label(said))
    for indexes, what in (
        (hidden, "Hidden characters, shown as ⟦U+…⟧, are"),
        (mixed, "Look-alike letters are"),
        (without, "UPDATE or DELETE without WHERE is"),
    ):
        if indexes:
            where = fit(calls_named(indexes), _CALLS)
            lines.append(label(f"⚠️ {what} in {where}."))
    return [context(*lines)] if lines else []


def _reasons(frame: Frame) -> list[Block]:
    """Say why calls need what they need, and which; nothing where that says nothing."""
    found: dict[str, list[int]] = {}
    for item in frame.approval.items:
        # The first reason is the tier that the policy lists, which all of them have.
        for reason in map(without_tier, item.reasons[1:]):
            found.setdefault(reason, []).append(item.index)
    lines: list[Plain | Template] = []
    for reason, indexes in [*found.items()][:_REASONS]:
        is_all = len(indexes) == len(frame.approval.items)
        of = "" if is_all else f" ({calls_named(indexes)})"
        lines.append(untrusted(fit(reason, _REASON) + fit(of, _CALLS)))
    if more := len(found) - len(lines):
        lines.append(template("and {n} more reasons: open the calls", n=more))
    return [context(*lines)] if lines else []
