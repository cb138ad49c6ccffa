"""Build the messages that call people to a card, or say why a card cannot stay.

Reminders and escalations mention reviewers, which notifies them. So they mention only
people who can still decide. A card that cannot stay is undelivered, replaced or
redacted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import LiteralString

from keyturn.bot.blocks import Block, Message, context, notes, section
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.mentions import (
    Mentions,
    escalation_mentions,
    mentions_for,
    unreachable,
)
from keyturn.bot.cards.refs import place, places, short_ref, when
from keyturn.bot.cards.states import STATE_NAMES, saying_when
from keyturn.bot.text import (
    Template,
    channel,
    code,
    fit,
    joined,
    label,
    link,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.record import Approval, Item, short_id
from keyturn.gateway.approvals.timing import end_of
from keyturn.gateway.protocol.records import ItemState

_MAX_LINES = 10
_WAITED_FOR: LiteralString = (
    "❓ Please check whether a call on this card took effect, then choose on the card. "
    "The agent is waiting."
)
_REMINDED: LiteralString = (
    "⏰ Still waiting for a decision. It expires {at}, and then nothing runs."
)
_REMINDED_OF_QUESTION: LiteralString = (
    "⏰ Still waiting for an answer. After {at} the agent continues without one."
)
_ESCALATED: LiteralString = (
    "📣 Not decided yet, so others are asked too. It expires {at}."
)
_ESCALATED_QUESTION: LiteralString = (
    "📣 Not answered yet, so others are asked too. After {at} the agent continues "
    "without an answer."
)
_CALLED: LiteralString = "📣 Not decided yet, so please decide now. It expires {at}."
_CALLED_BY_QUESTION: LiteralString = (
    "📣 Not answered yet, so please answer now. After {at} the agent continues without "
    "an answer."
)
_UNDECIDED = "Not decided yet, so others are asked too."
_UNANSWERED = "Not answered yet, so others are asked too."
_NOT_DECIDED_YET: LiteralString = "📣 {id} is not decided yet."
_NOT_ANSWERED_YET: LiteralString = "📣 {id}, a question, is not answered yet."
_LEFT_OPEN: LiteralString = (
    "❓ Please check whether a call on this card took effect, then choose on the card."
)
_NAMES = 200
NEEDED_NOW = template("🔔 Your decision is needed.")


def reminder(approval: Approval) -> Message:
    """Return the reply that reminds the reviewers who are still needed.

    It spares a person who said "I'm on it", and the user groups that they are in.
    """
    taken = approval.acknowledged
    whom = mentions_for(approval, spared=taken.by.user if taken else "")
    sentence = reminder_sentence(approval)
    if taken is not None:
        sentence = joined(" ", [sentence, template("A reviewer said *I'm on it*.")])
    text = "Not answered yet." if approval.is_question else "Not decided yet."
    text = f"{text} {card_fallback(approval)}"
    return Message((section(whom.before(sentence)),), text)


def reminder_sentence(approval: Approval) -> Template:
    """Return the words of a reminder, without mentions."""
    said = _REMINDED_OF_QUESTION if approval.is_question else _REMINDED
    return saying_when(said, approval)


def personal_reply(approval: Approval, sentence: Template, person: str) -> Message:
    """Return a reply under a person's copy; the mention notifies them."""
    said = template("{who} {said}", who=user(person), said=sentence)
    return Message((section(said),), card_fallback(approval))


def newly_needed(approval: Approval, *, but: Collection[str]) -> Message:
    """Return the reply that mentions roles required since the card was posted.

    Args:
        approval: the record, as it is to be shown.
        but: names of the roles that were mentioned before.
    """
    said = "🔔 Your decision is needed too. It expires {at}."
    sentence = saying_when(said, approval)
    text = f"More people are needed. {card_fallback(approval)}"
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
    return Message((section(whom.before(sentence)), *refused), text)


def with_reviewers(
    note: Message, approval: Approval, item: Item
) -> tuple[Message, frozenset[str]]:
    """Return a note that mentions the people who now decide, and their roles.

    For an edited call, or for a call in doubt.
    """
    whom = mentions_for(approval.with_(items=(item,)))
    if not whom.roles:
        return note, frozenset()
    blocks = (*note.blocks, section(whom.before(NEEDED_NOW)))
    text = f"{note.text} {card_fallback(approval)}" if item.is_pending else note.text
    return Message(blocks, text), frozenset(whom.roles)


def still_in_doubt(approval: Approval) -> tuple[Message | None, frozenset[str]]:
    """Return the reply that asks again about calls in doubt, and its mentioned roles.

    There is no timeout: the call may have run, so only people can find out.
    """
    doubts = tuple(one for one in approval.items if one.state is ItemState.IN_DOUBT)
    if not doubts:
        return None, frozenset()
    whom = mentions_for(approval.with_(items=doubts))
    sentence = doubt_sentence(approval)
    text = f"Please check whether a call took effect. {card_fallback(approval)}"
    return Message((section(whom.before(sentence)),), text), frozenset(whom.roles)


def doubt_sentence(approval: Approval) -> Template:
    """Return the question about calls in doubt, without mentions."""
    return template(_LEFT_OPEN if approval.is_auto_approved else _WAITED_FOR)


def waits_again(approval: Approval, reason: str) -> Message:
    """Return the reply about a call that is pending again, with the reason."""
    asking = section(mentions_for(approval).before(waits_again_sentence(approval)))
    small = notes([label(fit(reason, _NAMES))] if reason else [])
    text = f"Waiting for a person again. {card_fallback(approval)}"
    return Message((asking, *small), text)


def _end_of_reopened(approval: Approval) -> int:
    asked_anew = (
        end_of(approval, item)
        for item in approval.items
        if item.is_pending and item.revoked is not None
    )
    return max(asked_anew, default=approval.expires_at_ms)


def waits_again_sentence(approval: Approval) -> Template:
    """Return why a call is pending again, without mentions."""
    return template(
        "↩ Please decide again: an approval was taken back before the call ran. It "
        "expires {at}, and then nothing more runs.",
        at=when(_end_of_reopened(approval)),
    )


def escalation(approval: Approval, channels: Mapping[str, str]) -> Message:
    """Return the reply that mentions the reviewers of an escalation.

    If a channel could not be notified, the first reviewers are mentioned again.

    Args:
        approval: the escalated approval.
        channels: each called channel, and Slack's error if it was not notified, or "".
    """
    refused = {name: why for name, why in channels.items() if why}
    notified = [name for name in channels if name not in refused]
    said, text = _ESCALATED, _UNDECIDED
    if approval.is_question:
        said, text = _ESCALATED_QUESTION, _UNANSWERED
    sentence = saying_when(said, approval)
    whom = escalation_mentions(approval)
    # If a channel could not be notified, the first reviewers are mentioned again, so
    # that at least one person is notified.
    if refused:
        others = mentions_for(approval)
        mentions = tuple(dict.fromkeys((*whom.mentions, *others.mentions)))
        whom = Mentions((*whom.roles, *others.roles), mentions)
    blocks: list[Block] = [section(whom.before(sentence))]
    if notified:
        blocks.append(context(template("Notified in {where}", where=places(notified))))
    for name, why in [*refused.items()][:_MAX_LINES]:
        refusal = template(
            "Could not notify {where}: {why}.", where=place(name), why=reason(why)
        )
        blocks.append(context(refusal))
    return Message(tuple(blocks), f"{text} {card_fallback(approval)}")


def called_sentence(approval: Approval) -> Template:
    """Return the escalation's sentence for a person with a copy."""
    said = _CALLED_BY_QUESTION if approval.is_question else _CALLED
    return saying_when(said, approval)


def channel_escalation(approval: Approval, card_in: str) -> Message:
    """Return the message for another channel, with the tools and the card's channel.

    It contains no argument: its readers may not be allowed to see the card.

    Args:
        approval: the escalated approval.
        card_in: channel of the card; "" if it is not posted.
    """
    card = (
        template("Its card is in {where}.", where=channel(card_in))
        if card_in
        else template(
            "It has no card yet; reviewers find it on the Home tab of this app."
        )
    )
    ends = saying_when("It expires {at}.", approval)
    not_yet = _NOT_ANSWERED_YET if approval.is_question else _NOT_DECIDED_YET
    waits = template(not_yet, id=short_ref(approval.id))
    sentence = joined(" ", [waits, card, ends])
    # Names of tools only: this channel may have readers who must not see the arguments.
    tools = dict.fromkeys(item.tool for item in approval.items if item.is_pending)
    named = untrusted(fit(f"{', '.join(tools)} ({approval.agent})", _NAMES))
    text = _UNANSWERED if approval.is_question else _UNDECIDED
    blocks = (section(sentence), section(named))
    return Message(blocks, f"{text} {card_fallback(approval)}")


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
    what: LiteralString = "cannot be posted"
    if is_posted:
        what = "cannot be brought up to date"
    cannot = template(
        "⚠️ The card of {id} " + what + ": {why}.",
        id=short_ref(approval.id),
        why=reason(why),
    )
    blocks = (
        section(joined(" ", [cannot, *_next(approval)])),
        context(template("Channel: {place}", place=place(channel))),
        context(label(card_fallback(approval))),
    )
    text = f"The card of an approval {what}. {card_fallback(approval)}"
    return Message(blocks, text)


def outdated_copy(approval: Approval, *, channel: str, why: str) -> Message:
    """Return the message under a person's copy that cannot be updated any more.

    Args:
        approval: its current record.
        channel: of the card.
        why: Slack's error code.
    """
    said = template(
        "⚠️ This direct message shows an older state, and nothing can be decided on it "
        "any more: {why}.",
        why=reason(why),
    )
    card = context(template("Please use the card in {place}", place=place(channel)))
    text = f"This direct message shows an older state. {card_fallback(approval)}"
    return Message((section(said), card), text)


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
