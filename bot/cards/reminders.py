"""Render reminders and escalations: messages that mention reviewers.

Each message notifies people, so it mentions only those who can still decide.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import LiteralString

from keyturn.bot.blocks import Block, Message, context, section
from keyturn.bot.cards.deadlines import saying_when
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.mentions import (
    Mentions,
    escalation_mentions,
    mentions_for,
    unreachable,
)
from keyturn.bot.cards.refs import places, short_ref, when
from keyturn.bot.cards.undelivered import reason
from keyturn.bot.text import (
    Template,
    channel,
    fit,
    joined,
    label,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.record import Approval, Item
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
    return Message((section(whom.before(sentence)),), _reminder_text(approval))


def reminder_sentence(approval: Approval) -> Template:
    """Return the words of a reminder, without mentions."""
    said = _REMINDED_OF_QUESTION if approval.is_question else _REMINDED
    return saying_when(said, approval)


def _reminder_text(approval: Approval) -> str:
    text = "Not decided yet."
    if approval.is_question:
        text = "Not answered yet."
    return f"{text} {card_fallback(approval)}"


def personal_reply(approval: Approval, sentence: Template, person: str) -> Message:
    """Return a reply under a person's copy; the mention notifies them."""
    said = joined(" ", [template("{who}", who=user(person)), sentence])
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
            joined(
                "",
                [
                    template("No direct message to {who}: ", who=user(person)),
                    reason(why),
                    template("."),
                ],
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
    sentence = NEEDED_NOW
    blocks = (*note.blocks, section(whom.before(sentence)))
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
    sentence = waits_again_sentence(approval)
    blocks: list[Block] = [section(mentions_for(approval).before(sentence))]
    if reason:
        blocks.append(context(label(fit(reason, _NAMES))))
    text = f"Waiting for a person again. {card_fallback(approval)}"
    return Message(tuple(blocks), text)


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
        where = places(notified)
        blocks.append(context(joined(" ", [template("Notified in"), where])))
    for name, why in [*refused.items()][:_MAX_LINES]:
        parts = [template("Could not notify "), places([name]), template(": ")]
        blocks.append(context(joined("", [*parts, reason(why), template(".")])))
    return Message(tuple(blocks), f"{text} {card_fallback(approval)}")


def called_sentence(approval: Approval) -> Template:
    """Return the escalation's sentence for a person with a copy."""
    said = _CALLED_BY_QUESTION if approval.is_question else _CALLED
    return saying_when(said, approval)


def channel_escalation(approval: Approval, place: str) -> Message:
    """Return the message for another channel, with the tools and the card's channel.

    It contains no argument: its readers may not be allowed to see the card.

    Args:
        approval: the escalated approval.
        place: channel of the card; "" if it is not posted.
    """
    card = (
        template("Its card is in {where}.", where=channel(place))
        if place
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
