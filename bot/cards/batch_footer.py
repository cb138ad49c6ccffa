"""Render the footer of a batch: what can be decided for all of its calls at once."""

from __future__ import annotations

from keyturn.bot.blocks import Block, actions, context
from keyturn.bot.cards import buttons
from keyturn.bot.cards.call_rows import whole_calls
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.inquiries import ask_requester
from keyturn.bot.cards.noticed import is_remarkable
from keyturn.bot.cards.table import calls_named
from keyturn.bot.text import label, template
from keyturn.gateway.approvals.collected import is_collected
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.protocol.verbs import Verb


def decided_alone(approval: Approval) -> frozenset[int]:
    """Return the waiting calls that no decision on the whole card may approve.

    These are calls that the card cannot show whole, that need a reason to be approved,
    or that are escalated: an edit may have raised the tier of one call of a batch. In a
    table these are also calls of which more is to be said than a row holds.
    """
    # Once for all calls: a table is made as a whole.
    whole, is_row = whole_calls(approval), is_table(approval)
    return frozenset(
        item.index
        for item in approval.items
        if item.is_pending
        and (
            Verb.APPROVE in item.requires_reason
            or Verb.APPROVE not in item.allow
            or item.tier is Tier.ESCALATE
            or item.index not in whole
            or (is_row and is_remarkable(item))
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
    blocks: list[Block] = []
    offered: list[Block] = []
    if len(waiting) > 1 and not frame.is_late:
        # All or none: "Approve all" that leaves one out would be read as having
        # approved it.
        if not decided_alone(approval):
            offered.append(buttons.approve_all(frame))
        else:
            why = template("These calls have to be reviewed one at a time.")
            blocks.append(context(why))
    rare = ask_requester(frame, None)
    offered += buttons.menu([*rare, *buttons.time_buttons(frame, is_in_full=False)])
    if offered:
        blocks.append(actions(*offered))
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
            text = label(f"Open these to decide each on its own: {calls_named(alone)}.")
            blocks.append(context(text))
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
    return [*blocks, actions(*offered)]
