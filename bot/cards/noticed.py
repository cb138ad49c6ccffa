"""Find the calls of a table that a reviewer should look at first, and say why.

They stand on top of the table with a mark. Only the rows move: every call keeps its
number, and what is signed keeps the order of the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from twokey.bot.blocks import context
from twokey.bot.cards.frame import Frame, is_table
from twokey.bot.cards.listing import all_text, needs_a_look, one_line
from twokey.bot.cards.needs import without_tier
from twokey.bot.cards.sql_warnings import unlimited
from twokey.bot.cards.states import STATE_NAMES
from twokey.bot.cards.table import calls_named
from twokey.bot.cards.totals import (
    header_total,
    total_text,
    totals_by_tool,
    totals_of,
)
from twokey.bot.homoglyphs import homoglyph_warnings
from twokey.bot.objects import Block
from twokey.bot.text import fit, reveal
from twokey.bot.text_types import Plain, Template, label, template, untrusted
from twokey.gateway.approvals.invisible_characters import has_hidden
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.repeating import other_calls
from twokey.gateway.policy.formats import MOST_DIGITS
from twokey.gateway.policy.totals import Total
from twokey.gateway.protocol.states import ItemState

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
    a call that was done before, odd characters, or a warning of its own.
    """
    found = {index for total in totals_of(approval) for index in total.far}
    found |= _stricter(approval)
    return frozenset(
        item.index
        for item in approval.items
        if item.index in found
        or needs_a_look(item)
        or is_remarkable(item)
        or (item.is_pending and other_calls(approval, item.past))
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
    return [context(*lines, block_id=frame.block_id("totals"))] if lines else []


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
            lines += [
                template("⚠️ *Far from the others:*"),
                label(f"{far}; the median is {total.usual}"),
            ]
    if hidden:
        lines += [
            template("⚠️ *Hidden characters*, shown as ⟦U+…⟧, are in"),
            untrusted(fit(calls_named(hidden), _CALLS)),
        ]
    if mixed:
        lines += [
            template("⚠️ *Look-alike letters* are in"),
            untrusted(fit(calls_named(mixed), _CALLS)),
        ]
    if without:
        lines += [
            template("⚠️ *UPDATE or DELETE without WHERE* is in"),
            untrusted(fit(calls_named(without), _CALLS)),
        ]
    return [context(*lines, block_id=frame.block_id("odd"))] if lines else []


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
    return [context(*lines, block_id=frame.block_id("why"))] if lines else []
