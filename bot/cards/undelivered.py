"""Message to the requester when a card cannot be posted or updated."""

from __future__ import annotations

import re

from keyturn.bot.blocks import Block, Message, context, section
from keyturn.bot.cards.deadlines import saying_when
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.refs import places, short_ref
from keyturn.bot.text import Template, code, joined, label, template
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.states import ItemState

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_UNFINISHED = frozenset(
    {
        ItemState.PENDING,
        ItemState.AUTHORIZED,
        ItemState.EXECUTING,
        ItemState.IN_DOUBT,
    }
)


def needs_people(approval: Approval) -> bool:
    """Return whether people still have to decide about or reconcile a call."""
    waiting = {ItemState.PENDING, ItemState.IN_DOUBT}
    return any(item.state in waiting for item in approval.items)


def has_card(approval: Approval) -> bool:
    """Return whether an approval has a card of its own.

    Calls that a standing approval covered are listed on its card, until people have to
    reconcile them, or are asked whether they were right.
    """
    is_checked = any(item.spot_check is not None for item in approval.items)
    return not approval.covers or needs_people(approval) or is_checked


def is_over(approval: Approval) -> bool:
    """Return whether nothing on the card will change any more by itself."""
    return not any(item.state in _UNFINISHED for item in approval.items)


def reason(why: str) -> Template:
    """Return Slack's word for a refusal."""
    known = why if _PLAIN_NAME.fullmatch(why) else "unknown"
    return template("Slack says {why}", why=code(known))


def undelivered(
    approval: Approval, *, channel: str, why: str, is_posted: bool
) -> Message:
    """Return what is said of a card that is missing or shows an older state.

    Args:
        approval: as it stands now.
        channel: where Slack refused it.
        why: Slack's word for the refusal.
        is_posted: whether there is a card, which cannot be brought up to date.
    """
    named = short_ref(approval.id)
    cannot = (
        template(
            "⚠️ The card of {id} cannot be brought up to date:",
            id=named,
        )
        if is_posted
        else template("⚠️ The card of {id} cannot be posted:", id=named)
    )
    because = joined("", [reason(why), template(".")])
    blocks: list[Block] = [section(joined(" ", [cannot, because, *_next(approval)]))]
    blocks.append(context(joined(" ", [template("Channel:"), places([channel])])))
    blocks.append(context(label(card_fallback(approval))))
    what = "cannot be brought up to date" if is_posted else "cannot be posted"
    text = f"The card of an approval {what}. {card_fallback(approval)}"
    return Message(tuple(blocks), text)


def outdated_copy(approval: Approval, *, channel: str, why: str) -> Message:
    """Return what is said under somebody's copy of a card that cannot change any more.

    Args:
        approval: as it stands now.
        channel: of the card.
        why: Slack's word for the refusal.
    """
    said = template(
        "⚠️ This direct message shows an older state, and nothing can be decided on it "
        "any more:"
    )
    because = joined("", [reason(why), template(".")])
    card = context(joined(" ", [template("Please use the card in"), places([channel])]))
    text = f"This direct message shows an older state. {card_fallback(approval)}"
    return Message((section(joined(" ", [said, because])), card), text)


def _next(approval: Approval) -> list[Template]:
    """Return what people can do; nothing when nothing is left to be done."""
    if not needs_people(approval):
        return []
    trying = template(
        "I keep trying; to help, invite me to the channel, or name another one in the "
        "policy."
    )
    if not any(item.is_pending for item in approval.items):
        return [trying]
    waits = saying_when(
        "It waits until {at}, and its reviewers find it on the Home tab of this app.",
        approval,
    )
    return [waits, trying]
