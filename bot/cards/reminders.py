"""Build the messages that call people to a card, or say why a card cannot stay.

Reminders and escalations mention reviewers, which notifies them. So they mention only
people who can still decide. A card that cannot stay is undelivered, replaced or
redacted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import LiteralString, NamedTuple

from keyturn.bot.blocks import Block, Message, context, notes, section
from keyturn.bot.cards.mentions import (
    Mentions,
    escalation_mentions,
    mentions_for,
    unreachable,
)
from keyturn.bot.cards.refs import place, places, short_ref, when
from keyturn.bot.cards.states import (
    ENDED,
    STATE_NAMES,
    about,
    card_fallback,
    expiry,
)
from keyturn.bot.text import (
    LINE,
    Template,
    channel,
    code,
    fit,
    joined,
    label,
    spoken,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.record import Approval, Item, short_id
from keyturn.gateway.approvals.timing import end_of
from keyturn.gateway.protocol.records import ItemState

_MAX_LINES = 10
NEEDED_NOW = template("🔔 Your decision is needed.")


class Call(NamedTuple):
    """A reply under a card that calls people to it.

    Attributes:
        message: the reply.
        roles: names of the roles that it mentions.
        sentence: the reply for people with a copy of the card; None for no such reply.
    """

    message: Message
    roles: frozenset[str]
    sentence: Template | None = None


def _call(approval: Approval, sentence: Template, whom: Mentions, *more: Block) -> Call:
    text = about(approval.items, sentence)
    message = Message((section(whom.before(sentence)), *more), text)
    return Call(message, frozenset(whom.roles), sentence)


def _with_expiry(sentence: Template, approval: Approval) -> Template:
    return joined(" ", [sentence, expiry(approval)])


def reminder(approval: Approval) -> Call:
    """Return the reply that reminds the reviewers who are still needed.

    It spares a person who said "I'm on it", with their user groups.
    """
    taken = approval.acknowledged
    whom = mentions_for(approval, spared=taken.by.user if taken else "")
    waiting = _with_expiry(template("⏰ Still waiting for people."), approval)
    if taken is None:
        return _call(approval, waiting, whom)
    said = template("A reviewer said *I'm on it*.")
    call = _call(approval, joined(" ", [waiting, said]), whom)
    return call._replace(sentence=waiting)


def snooze_over(approval: Approval, person: str) -> Call:
    """Return the reply for a person whose snooze is over."""
    sentence = _with_expiry(template("⏰ Your snooze is over."), approval)
    return Call(personal_reply(approval, sentence, person), frozenset())


def personal_reply(approval: Approval, sentence: Template, person: str) -> Message:
    """Return a reply under a person's copy; the mention notifies them."""
    whom = Mentions((), (template("{who}", who=user(person)),))
    return _call(approval, sentence, whom).message


def newly_needed(approval: Approval, *, but: Collection[str]) -> Call:
    """Return the reply that mentions roles required since the card was posted.

    Args:
        approval: the record, as it is to be shown.
        but: names of the roles that were mentioned before.
    """
    sentence = _with_expiry(template("🔔 Your decision is needed too."), approval)
    whom = mentions_for(approval, but=but)
    refused = [
        context(
            template(
                "No direct message to {who}: {why}.", who=user(person), why=reason(why)
            )
        )
        for person, why in unreachable(approval).items()
        if f"@{person}" in whom.roles
    ]
    return _call(approval, sentence, whom, *refused)


def with_reviewers(note: Message, approval: Approval, item: Item) -> Call:
    """Return a note with the people who now decide an edited call, or one in doubt."""
    whom = mentions_for(approval.with_(items=(item,)))
    if not whom.roles:
        return Call(note, frozenset(), NEEDED_NOW)
    blocks = (*note.blocks, section(whom.before(NEEDED_NOW)))
    text = f"{note.text} {spoken(NEEDED_NOW)}"
    return Call(Message(blocks, text), frozenset(whom.roles), NEEDED_NOW)


def still_in_doubt(approval: Approval) -> Call | None:
    """Return the reply that asks again about calls in doubt; None if there are none.

    There is no timeout: the call may have run, so only people can find out.
    """
    doubts = tuple(one for one in approval.items if one.state is ItemState.IN_DOUBT)
    if not doubts:
        return None
    question = template(
        "❓ Please check whether a call on this card took effect, then choose on the "
        "card."
    )
    return _call(approval, question, mentions_for(approval.with_(items=doubts)))


def waits_again(approval: Approval, reason: str) -> Call:
    """Return the reply about a call that is pending again, with the reason."""
    small = notes([label(fit(reason, LINE))] if reason else [])
    reopened = [it for it in approval.items if it.is_pending and it.revoked is not None]
    why: LiteralString = "an approval was taken back before the call ran"
    if any(item.is_restored for item in reopened):
        why = "the store was restored from an older copy"
    ends = (end_of(approval, item) for item in reopened)
    sentence = template(
        "↩ Please decide again: " + why + ". It expires {at}.",
        at=when(max(ends, default=approval.expires_at_ms)),
    )
    return _call(approval, sentence, mentions_for(approval), *small)


_ESCALATED = template("📣 Still waiting, so others are asked too.")


def escalation(approval: Approval, channels: Mapping[str, str]) -> Call:
    """Return the reply that mentions the reviewers of an escalation.

    Args:
        approval: the escalated approval.
        channels: each called channel, and Slack's error if it was not notified, or "".
    """
    refused = {name: why for name, why in channels.items() if why}
    notified = [name for name in channels if name not in refused]
    whom = escalation_mentions(approval)
    # If a channel could not be notified, the first reviewers are mentioned again, so
    # that at least one person is notified.
    others = mentions_for(approval)
    mentions = (*whom.mentions, *(others.mentions if refused else ()))
    whom = Mentions((*whom.roles, *others.roles), tuple(dict.fromkeys(mentions)))
    small: list[Template] = []
    if notified:
        small.append(template("Notified in {where}", where=places(notified)))
    for name, why in [*refused.items()][:_MAX_LINES]:
        small.append(
            template(
                "Could not notify {where}: {why}.", where=place(name), why=reason(why)
            )
        )
    sentence = _with_expiry(_ESCALATED, approval)
    personal = template("📣 Still waiting, so now you are asked as well.")
    call = _call(approval, sentence, whom, *map(context, small))
    return call._replace(sentence=_with_expiry(personal, approval))


def channel_escalation(approval: Approval, card_in: str) -> Message:
    """Return the message for another channel, with the tools and the card's channel.

    It contains no argument: its readers may not be allowed to see the card.

    Args:
        approval: the escalated approval.
        card_in: channel of the card; "" if it is not posted.
    """
    waits = template("📣 {id} still waits.", id=short_ref(approval.id))
    card = template("Reviewers find it on the Home tab of this app.")
    if card_in:
        card = template("Its card is in {where}.", where=channel(card_in))
    # Names of tools only: this channel may have readers who must not see the arguments.
    tools = dict.fromkeys(item.tool for item in approval.items if item.is_pending)
    named = untrusted(fit(f"{', '.join(tools)} ({approval.agent})", LINE))
    blocks = (section(joined(" ", [waits, card, expiry(approval)])), section(named))
    return Message(blocks, f"{spoken(_ESCALATED)} {card_fallback(approval)}")


_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")


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
    return all(item.state in ENDED for item in approval.items)


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
    what: LiteralString = "cannot be posted"
    if is_posted:
        what = "cannot be brought up to date"
    cannot = template(
        "⚠️ The card of {id} in {where} " + what + ": {why}.",
        id=short_ref(approval.id),
        where=place(channel),
        why=reason(why),
    )
    parts = [cannot]
    if any(item.is_pending for item in approval.items):
        home = template("Its reviewers find it on the Home tab of this app.")
        parts += [home, expiry(approval)]
    if needs_people(approval):
        parts.append(
            template(
                "I keep trying; to help, invite me to the channel, or name another one "
                "in the policy."
            )
        )
    state = card_fallback(approval)
    blocks = (section(joined(" ", parts)), context(label(state)))
    return Message(blocks, f"The card of an approval {what}. {state}")


def outdated_copy(approval: Approval, *, channel: str, why: str) -> Message:
    """Return the message under a person's copy that cannot be updated any more.

    Args:
        approval: its current record.
        channel: of the card.
        why: Slack's error code.
    """
    said = template(
        "⚠️ This direct message shows an older state ({why}). Please use the card in "
        "{place}.",
        why=reason(why),
        place=place(channel),
    )
    text = f"This direct message shows an older state. {card_fallback(approval)}"
    return Message((section(said),), text)


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


def replaced() -> Message:
    """Return the message that replaces a card.

    Without metadata: searches for the card must not find this message.
    """
    text = template("This card was replaced by a newer one.")
    return Message((section(text),), "A card that was replaced", metadata={})
