"""What stands in place of a message whose time is over."""

from __future__ import annotations

from collections.abc import Iterable

from twokey.bot.blocks import Message, context, section
from twokey.bot.cards.states import STATE_NAMES
from twokey.bot.text_types import label, untrusted
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.short_id import short_id

_TEXT = "The details of this message were removed, since their time is over."


def redacted(approval: str, outcome: str, *, days: int) -> Message:
    """Return the message that replaces one about an approval.

    Args:
        approval: its id.
        outcome: how it ended, see `outcome_of`; "" where that is not known.
        days: after how many the details are removed.
    """
    said = f"Request {short_id(approval)}: {outcome or 'it has ended'}."
    after = f"after {days} days" if days != 1 else "after a day"
    # As plain text: what the store held of the outcome is not to be taken for markup.
    return Message(
        (
            section(untrusted(f"🧹 {said} The details were removed {after}.")),
            context(label(f"The audit log keeps what was decided, under {approval}.")),
        ),
        _TEXT,
    )


def outcome_of(approvals: Iterable[Approval]) -> str:
    """Return how approvals ended, in a few words."""
    states = [STATE_NAMES[item.state] for one in approvals for item in one.items]
    if len(states) == 1:
        return states[0]
    # In the order in which they come first.
    return ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))
