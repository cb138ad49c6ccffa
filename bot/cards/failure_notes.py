"""The thread reply about several calls of a card that failed or may have run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from twokey.bot.blocks import Message, box, context, rich_text, section
from twokey.bot.cards.history import thread_note
from twokey.bot.objects import Block
from twokey.bot.text import excerpt
from twokey.bot.text_types import Template, joined, label, template
from twokey.gateway.approvals.batch_deciding import index_ranges
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval, Item

_ERRORS = 10
"""How many errors one reply shows; the card and its details have the others."""
_ERROR = 200
_REASONS = 3

_FAILED: LiteralString = "❌ These failed."
_ASKS: LiteralString = "❌ These failed. Please say whether they run again."
_DOUBT: LiteralString = "❓ The worker stopped while these ran. Please check."
_RESTORED: LiteralString = "❓ These may have run. Please check."


def failures_note(events: Sequence[Event], approval: Approval) -> Message:
    """Return one reply about the calls of these events.

    Args:
        events: failures, or calls that came into doubt, of this approval.
        approval: the record, at the last of them or after it.
    """
    items = {item.id: item for item in approval.items}
    known = [(one, items[one.item]) for one in events if one.item in items]
    if len({item.id for _, item in known}) == 1:
        alone = thread_note(known[-1][0], approval)
        if alone is not None:
            return alone
    found: dict[LiteralString, list[int]] = {}
    for event, item in known:
        found.setdefault(_sentence(event, item), []).append(item.index)
    lines = [
        joined(" ", [template("*Calls*"), _numbers(indexes), template(said)])
        for said, indexes in found.items()
    ]
    blocks: list[Block] = [section(joined("\n", lines))]
    reasons = dict.fromkeys(
        one.reason for one, _ in known if one.name is EventName.ITEM_IN_DOUBT
    )
    if said := [label(reason) for reason in reasons if reason][:_REASONS]:
        blocks.append(context(*said))
    if errors := _errors(item for _, item in known):
        name = f"{approval.id}:{events[-1].name}"
        blocks.append(rich_text(box(errors), block_id=name))
    return Message(tuple(blocks), _fallback(known))


def _sentence(event: Event, item: Item) -> LiteralString:
    if event.name is EventName.ITEM_FAILED:
        return _FAILED
    if item.is_restored:
        return _RESTORED
    return _ASKS if item.has_failed else _DOUBT


def _numbers(indexes: Iterable[int]) -> Template:
    """Return calls by the numbers that people see: "*1-3, 7:*"."""
    parts: list[Template] = []
    for part in index_ranges({index + 1 for index in indexes}).split(","):
        first, _, last = part.partition("-")
        if last:
            parts.append(template("{a}-{b}", a=int(first), b=int(last)))
        else:
            parts.append(template("{a}", a=int(first)))
    return joined("", [template("*"), joined(", ", parts), template(":*")])


def _errors(items: Iterable[Item]) -> str:
    """Return what the tools say, a line for each call, and how many are not shown."""
    each = {item.index: item.result.summary for item in items if item.result}
    texts = [(index, " ".join(text.split())) for index, text in sorted(each.items())]
    lines = [f"{n + 1}: {excerpt(text, _ERROR).text}" for n, text in texts if text]
    more = len(lines) - _ERRORS
    return "\n".join([*lines[:_ERRORS], *([f"… and {more} more"] if more > 0 else [])])


def _fallback(known: Sequence[tuple[Event, Item]]) -> str:
    count = len({item.id for _, item in known})
    if known[0][0].name is EventName.ITEM_FAILED:
        return f"{count} calls failed."
    return f"Please check {count} calls: they failed or may have run."
