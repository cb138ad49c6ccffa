"""Build what replaces a message: an erased, a redacted or a surplus card."""

from __future__ import annotations

from collections.abc import Iterable

from keyturn.bot.blocks import Message, context, section
from keyturn.bot.cards.states import STATE_NAMES
from keyturn.bot.text import label, link, template, untrusted
from keyturn.gateway.approvals.record import Approval, short_id

_REDACTED = "The details of this message were removed, since their time is over."


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
        _REDACTED,
    )


def outcome_of(approvals: Iterable[Approval]) -> str:
    """Return how approvals ended, in a few words."""
    states = [STATE_NAMES[item.state] for one in approvals for item in one.items]
    if len(states) == 1:
        return states[0]
    # In the order in which they come first.
    return ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))


_ERASED = "This call was erased: its arguments, results and reasons are kept no longer."


def erased() -> Message:
    """Return the message that replaces a card and each copy of it."""
    return Message((section(template(_ERASED)),), "An erased approval")


def replaced(where: str = "") -> Message:
    """Return the message that replaces a card; ``where`` is the current card's URL.

    It has no metadata: this message is not looked for as a card any more.
    """
    text = template("This card was replaced by a newer one.")
    if where:
        card = link(where, "the current card")
        text = template("This card was replaced. Open {card}.", card=card)
    return Message((section(text),), "A card that was replaced", metadata={})
