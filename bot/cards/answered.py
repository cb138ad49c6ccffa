"""Show on a card what people answered its agent before it made these calls."""

from __future__ import annotations

from twokey.bot.blocks import box, context, rich_text
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.refs import when
from twokey.bot.objects import Block
from twokey.bot.text import excerpt, fit
from twokey.bot.text_types import template, untrusted
from twokey.gateway.approvals.lifecycle import ApprovalState

MOST_TEXT = 1_000
"""Characters that all of it takes on a card, at most."""

_NAME = 60
_HEAD = 150
"""What stands above each answer, with its name."""


def answered(frame: Frame) -> list[Block]:
    """Return the answers while calls wait; Full details of a call have them whole."""
    approval = frame.approval
    if not approval.answered or approval.state is not ApprovalState.OPEN:
        return []
    if approval.is_batch:
        # A batch has no room for them.
        sentence = template("💬 *People answered the agent before:* see Full details.")
        return [context(sentence, block_id=frame.block_id("answered"))]
    share = MOST_TEXT // len(approval.answered) - _HEAD
    blocks: list[Block] = []
    for place, one in enumerate(approval.answered):
        # The name in plain text: a mention would notify them of the call.
        name = untrusted(fit(one.by.name or one.by.user, _NAME))
        head = template("💬 *Answered before*, {at}, by", at=when(one.at_ms))
        blocks += [
            context(head, name, block_id=frame.block_id(f"answered.{place}.by")),
            rich_text(
                box(excerpt(one.text, share).text),
                block_id=frame.block_id(f"answered.{place}"),
            ),
        ]
    return blocks
