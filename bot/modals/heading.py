"""Heading of a modal: the call that it is about."""

from __future__ import annotations

from typing import LiteralString

from twokey.bot.blocks import box, context, rich_text, section
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.listing import call_title, listing_of
from twokey.bot.cards.states import TIER_BEFORE_REASONS, TIER_NAMES
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import joined, template, untrusted
from twokey.gateway.approvals.record import Item

_TITLE = 300
_TOOL = 80
_CALL = 1_200

REASONS = 200
"""How many characters of the reasons a heading shows; the details have them all."""


def heading(frame: Frame, item: Item, *, with_call: bool = True) -> list[Block]:
    """Return what a modal says first: the call, its tier, and why it needs review."""
    approval = frame.approval
    number = [template("Call {n} of {of} ·", n=item.index + 1, of=len(approval.items))]
    tier_words = (
        TIER_BEFORE_REASONS[item.tier] if item.reasons else TIER_NAMES[item.tier]
    )
    if item.is_question:
        tier_words = "A question: it waits for an answer, and nothing runs"
    tier = joined(" ", [*(number if approval.is_batch else []), template(tier_words)])
    # What raised the tier first: the first reason is the tier that the policy lists,
    # which says least, and a line that is too long is cut at its end.
    why = " · ".join((*item.reasons[1:], *item.reasons[:1]))
    parts = [untrusted(fit(why, REASONS))] if why else []
    blocks: list[Block] = []
    title = call_title(item)
    if with_call:
        blocks.append(section(untrusted(fit(title, _TITLE))))
        shown = listing_of(item, budget=_CALL)
        boxes = [box(text) for text in shown.boxes]
        blocks.append(rich_text(*boxes, block_id=frame.block_id("heading.call")))
    else:
        tool = "" if item.is_question else f" ({fit(item.tool, _TOOL)})"
        named = f"{fit(title, _TITLE)}{tool}"
        blocks.append(section(untrusted(named)))
    blocks.append(context(tier, *parts))
    return blocks


def hint(text: LiteralString) -> Block:
    """Return a small line of ours."""
    return context(template(text))
