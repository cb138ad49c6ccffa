"""Build messages about a card that cannot stay: undelivered, replaced or redacted."""

from __future__ import annotations

import re
from collections.abc import Iterable

from keyturn.bot.blocks import Block, Message, context, section
from keyturn.bot.cards.deadlines import saying_when
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.refs import places, short_ref
from keyturn.bot.cards.states import STATE_NAMES
from keyturn.bot.text import Template, code, joined, label, link, template, untrusted
from keyturn.gateway.approvals.record import Approval, short_id
from keyturn.gateway.protocol.records import ItemState

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
    """Return whether an approval has a separate card.

    Calls under a standing approval are listed on its card. They get a separate card
    when people have to reconcile them, or are asked whether they were right.
    """
    is_checked = any(item.spot_check is not None for item in approval.items)
    return not approval.covers or needs_people(approval) or is_checked


def is_over(approval: Approval) -> bool:
    """Return whether nothing on the card will change by itself any more."""
    return not any(item.state in _UNFINISHED for item in approval.items)


def reason(why: str) -> Template:
    """Return Slack's error code for a refusal."""
    known = why if _PLAIN_NAME.fullmatch(why) else "unknown"
    return template("Slack says {why}", why=code(known))


def undelivered(
    approval: Approval, *, channel: str, why: str, is_posted: bool
) -> Message:
    """Return the message about a card that is missing or shows an older state.

    Args:
        approval: its current record.
        channel: where Slack refused the card.
        why: Slack's error code.
        is_posted: whether a card exists that cannot be updated.
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
    """Return the message under a person's copy that cannot be updated any more.

    Args:
        approval: its current record.
        channel: of the card.
        why: Slack's error code.
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
    """Return the possible next steps; empty if nothing is left to do."""
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


_REDACTED = "The details of this message were removed, since their time is over."


def redacted(approval: str, outcome: str, *, days: int) -> Message:
    """Return the message that replaces one about an approval.

    Args:
        approval: its id.
        outcome: how it ended, see `outcome_of`; "" if unknown.
        days: days after which the details are removed.
    """
    said = f"Request {short_id(approval)}: {outcome or 'it has ended'}."
    after = f"after {days} days" if days != 1 else "after a day"
    # As plain text: an outcome read from the store must not be parsed as markup.
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
    # In the order of their first occurrence.
    return ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))


_ERASED = "This call was erased: its arguments, results and reasons are kept no longer."


def erased() -> Message:
    """Return the message that replaces a card and each copy of it."""
    return Message((section(template(_ERASED)),), "An erased approval")


def replaced(where: str = "") -> Message:
    """Return the message that replaces a card; ``where`` is the current card's URL.

    Without metadata: searches for the card must not find this message.
    """
    text = template("This card was replaced by a newer one.")
    if where:
        card = link(where, "the current card")
        text = template("This card was replaced. Open {card}.", card=card)
    return Message((section(text),), "A card that was replaced", metadata={})
