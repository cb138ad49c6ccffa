"""Render the footer of a batch: what can be decided for all of its calls at once."""

from __future__ import annotations

from twokey.bot.blocks import actions, box, context, rich_text, section
from twokey.bot.cards import buttons
from twokey.bot.cards.call_rows import needs_full_view
from twokey.bot.cards.frame import Frame, is_table, rows_of
from twokey.bot.cards.inquiries import ask_requester
from twokey.bot.cards.noticed import is_remarkable
from twokey.bot.cards.states import STATE_NAMES
from twokey.bot.cards.table import calls_named, table_of
from twokey.bot.objects import Block
from twokey.bot.text import excerpt
from twokey.bot.text_types import template, untrusted
from twokey.gateway.approvals.collected import is_collected
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb

_OTHERS = 300


def decided_alone(approval: Approval) -> frozenset[int]:
    """Return the waiting calls that no decision on the whole card may approve.

    These are calls that the card cannot show whole, that need a reason to be approved,
    or that are escalated: an edit may have raised the tier of one call of a batch. In a
    table these are also calls of which more is to be said than a row holds.
    """
    # Once for all calls: a table is made as a whole.
    whole = table_of(approval).whole if is_table(approval) else None
    return frozenset(
        item.index
        for item in approval.items
        if item.is_pending
        and (
            Verb.APPROVE in item.requires_reason
            or Verb.APPROVE not in item.allow
            or item.tier is Tier.ESCALATE
            or (
                needs_full_view(approval, item.index)
                if whole is None
                else item.index not in whole or is_remarkable(item)
            )
        )
    )


def batch_footer(frame: Frame) -> list[Block]:
    """Return what concerns the batch as a whole; nothing for a single call."""
    approval = frame.approval
    if not approval.is_batch:
        return []
    if is_table(approval):
        return _of_table(frame)
    waiting = [item for item in approval.items if item.is_pending]
    listed = {item.index for item in rows_of(approval)}
    others = [item for item in approval.items if item.index not in listed]
    blocks: list[Block] = []
    if others:
        lines = [f"{i.index + 1}. {i.tool}: {STATE_NAMES[i.state]}" for i in others]
        text = excerpt("\n".join(lines), _OTHERS).text
        more = template("*{n} more calls* are not shown here:", n=len(others))
        blocks.append(section(more, block_id=frame.block_id("others")))
        blocks.append(rich_text(box(text), block_id=frame.block_id("others.list")))
    offered: list[Block] = []
    if len(waiting) > 1 and not frame.is_late:
        # All or none: "Approve all" that leaves one out would be read as having
        # approved it.
        if not decided_alone(approval):
            offered.append(buttons.approve_all(frame))
        else:
            why = template(
                "Not all of these calls can be approved with one click, so each is "
                "decided on its own."
            )
            blocks.append(context(why, block_id=frame.block_id("each")))
    rare = [buttons.view_call(frame, others[0])] if others else []
    rare += ask_requester(frame, None)
    offered += buttons.menu([*rare, *buttons.time_buttons(frame, is_in_full=False)])
    if offered:
        blocks.append(actions(*offered, block_id=frame.block_id("batch")))
    return blocks


def _of_table(frame: Frame) -> list[Block]:
    """Return the footer of a card with a table."""
    approval = frame.approval
    waiting = [item for item in approval.items if item.is_pending]
    blocks: list[Block] = []
    offered: list[Block] = []
    if waiting and not frame.is_late:
        alone = decided_alone(approval)
        if alone:
            text = template("Open these to decide each of them on its own:")
            which = untrusted(calls_named(alone))
            blocks.append(context(text, which, block_id=frame.block_id("alone")))
        else:
            offered.append(buttons.approve_all(frame))
        if len(alone) < len(waiting):
            offered.append(buttons.choose(frame))
        if all(Verb.REJECT in item.allow for item in waiting):
            offered.append(buttons.reject_all(frame))
    # On a collected card each call has its own time, and its own words in its thread:
    # these are in what *Open a call…* shows.
    rare = ask_requester(frame, None) + buttons.time_buttons(frame, is_in_full=False)
    is_of_several = is_collected(approval)
    offered += [buttons.open_call(frame), *buttons.menu([] if is_of_several else rare)]
    return [*blocks, actions(*offered, block_id=frame.block_id("batch"))]
