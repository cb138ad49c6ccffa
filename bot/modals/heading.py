"""Heading of a modal: the call that it is about."""

from __future__ import annotations

from typing import LiteralString

from twokey.bot.blocks import box, context, rich_text, section
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.listing import call_title, listing_of
from twokey.bot.cards.needs import because, is_usual, needs, why
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import Template, Untrusted, joined, template, untrusted
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.tiers import Tier

_TITLE = 300
_TOOL = 80
_CALL = 1_200
_TIERS: dict[Tier, LiteralString] = {
    Tier.AUTO: "(tier *auto*)",
    Tier.NOTIFY: "(tier *notify*)",
    Tier.APPROVE: "(tier *approve*)",
    Tier.ESCALATE: "(tier *escalate*)",
    Tier.DENY: "(tier *deny*)",
}

REASONS = 200
"""How many characters of the reasons a heading shows; the details have them all."""


def heading(
    frame: Frame, item: Item, *, with_call: bool = True, is_full: bool = False
) -> list[Block]:
    """Return what a modal says first: the call, and what it needs where that informs.

    Args:
        frame: of the modal.
        item: the call.
        with_call: whether its arguments stand in it.
        is_full: for the details: its tier and all reasons, whatever they say.
    """
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
    return [*blocks, *_needs(frame, item, is_full=is_full)]


def _needs(frame: Frame, item: Item, *, is_full: bool) -> list[Block]:
    approval = frame.approval
    said: list[Template | Untrusted] = []
    if approval.is_batch:
        of = len(approval.items)
        said.append(template("Call {n} of {of}", n=item.index + 1, of=of))
    if item.is_question:
        said.append(template("A question: it waits for an answer, and nothing runs"))
        return [context(*said)]
    # What raised the tier first: the first reason is the tier that the policy lists,
    # which says least, and a line that is too long is cut at its end.
    text = " · ".join((*item.reasons[1:], *item.reasons[:1])) if is_full else why(item)
    if is_full or not is_usual(item):
        words = [needs(item), *([template(_TIERS[item.tier])] if is_full else [])]
        said.append(because(joined(" ", words), text))
        said += [untrusted(fit(text, REASONS))] if text else []
    return [context(*said)] if said else []


def hint(text: LiteralString) -> Block:
    """Return a small line of ours."""
    return context(template(text))
