"""Render reminders and escalations: messages that mention reviewers.

These lines notify people, so each names only those whose word still counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import LiteralString

from twokey.bot.blocks import Message, context, section
from twokey.bot.cards.fallbacks import card_fallback
from twokey.bot.cards.mentions import Mentions, escalation_mentions, mentions_for
from twokey.bot.cards.refs import places, when
from twokey.bot.cards.undelivered import reason
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import channel, code, joined, label, template, untrusted
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.states import ItemState

_MOST = 10
_WAITED_FOR: LiteralString = (
    "❓ Nobody has said whether a call on this card took effect, and its agent waits "
    "for that. Please check, and say so on the card."
)
_LEFT_OPEN: LiteralString = (
    "❓ Nobody has said whether a call on this card took effect. Please check, and say "
    "so on the card."
)
_NAMES = 200


def reminder(approval: Approval) -> Message:
    """Return the line under a card that reminds those whose word it still needs."""
    said = template(
        "⏰ This still waits for a decision. It expires {at}, and then nothing runs.",
        at=when(approval.expires_at_ms),
    )
    text = f"This is not decided yet. {card_fallback(approval)}"
    return Message((section(mentions_for(approval).before(said)),), text)


def newly_needed(approval: Approval, *, but: Collection[str]) -> Message:
    """Return the line that mentions those whom a card did not need at first.

    Args:
        approval: the record, as it is to be shown.
        but: names of the roles that were mentioned before.
    """
    said = template(
        "🔔 This needs your decision too by now. It expires {at}.",
        at=when(approval.expires_at_ms),
    )
    text = f"This needs more people by now. {card_fallback(approval)}"
    return Message((section(mentions_for(approval, but=but).before(said)),), text)


def with_reviewers(
    note: Message, approval: Approval, item: Item
) -> tuple[Message, frozenset[str]]:
    """Return a note that mentions who has to decide about its call now, and the roles.

    After an edit, and when it is unknown what became of a call.
    """
    whom = mentions_for(approval.with_(items=(item,)))
    if not whom.roles:
        return note, frozenset()
    said = template("🔔 This needs your decision now.")
    blocks = (*note.blocks, section(whom.before(said)))
    text = f"{note.text} {card_fallback(approval)}" if item.is_pending else note.text
    return Message(blocks, text), frozenset(whom.roles)


def still_in_doubt(approval: Approval) -> tuple[Message | None, frozenset[str]]:
    """Return the line that asks again what became of calls, and whom; None for none.

    An agent that waits for people waits for that, however long: the call may have run.
    """
    doubts = tuple(one for one in approval.items if one.state is ItemState.IN_DOUBT)
    if not doubts:
        return None, frozenset()
    whom = mentions_for(approval.with_(items=doubts))
    said = template(_LEFT_OPEN if approval.is_unasked else _WAITED_FOR)
    text = f"It is still unknown what became of a call. {card_fallback(approval)}"
    return Message((section(whom.before(said)),), text), frozenset(whom.roles)


def waits_again(approval: Approval, reason: str) -> Message:
    """Return the line under a card whose call went back to people, and why."""
    said = template(
        "↩ An approval was taken back before the call ran, so this waits for a "
        "decision again. It expires {at}, and then nothing more runs.",
        at=when(approval.expires_at_ms),
    )
    blocks: list[Block] = [section(mentions_for(approval).before(said))]
    if reason:
        blocks.append(context(label(fit(reason, _NAMES))))
    text = f"This waits for a person again. {card_fallback(approval)}"
    return Message(tuple(blocks), text)


def escalation(approval: Approval, channels: Mapping[str, str]) -> Message:
    """Return the line under a card that calls those whom the policy calls later.

    Where a channel could not be told, whoever may decide is called here instead.

    Args:
        approval: what waits.
        channels: each channel that was called, and Slack's word for why it was not
            told; "" for one that was.
    """
    refused = {name: why for name, why in channels.items() if why}
    told = [name for name in channels if name not in refused]
    said = template(
        "📣 This is not decided yet, so others are asked too. It expires {at}.",
        at=when(approval.expires_at_ms),
    )
    whom = escalation_mentions(approval)
    # Where a channel did not hear of it, those of the first round are mentioned again:
    # somebody has to.
    if refused:
        others = mentions_for(approval)
        mentions = tuple(dict.fromkeys((*whom.mentions, *others.mentions)))
        whom = Mentions((*whom.roles, *others.roles), mentions)
    blocks: list[Block] = [section(whom.before(said))]
    if told:
        blocks.append(context(label("Told in"), *places(told[:_MOST])))
    for name, why in [*refused.items()][:_MOST]:
        where = places([name])
        because = joined("", [reason(why), template(".")])
        blocks.append(context(label("Could not be told:"), *where, because))
    text = (
        f"This is not decided yet, so others are asked too. {card_fallback(approval)}"
    )
    return Message(tuple(blocks), text)


def channel_escalation(approval: Approval, place: str) -> Message:
    """Return the line for another channel: which tools wait, and where the card is.

    It holds no argument: who reads it may not be allowed to see the card.

    Args:
        approval: what waits.
        place: channel of the card; "" when it is not posted.
    """
    at = when(approval.expires_at_ms)
    card = (
        template(
            "Its card is in {where} and expires {at}.", where=channel(place), at=at
        )
        if place
        else template(
            "It has no card yet and expires {at}. Whoever may decide finds it on the "
            "Home tab of this app.",
            at=at,
        )
    )
    waits = template("📣 {id} is not decided yet.", id=code(approval.id))
    said = joined(" ", [waits, card])
    # Names of tools only: this channel may have readers who must not see the arguments.
    tools = dict.fromkeys(item.tool for item in approval.items if item.is_pending)
    named = untrusted(fit(f"{', '.join(tools)} ({approval.agent})", _NAMES))
    text = (
        f"This is not decided yet, so others are asked too. {card_fallback(approval)}"
    )
    return Message((section(said), section(named)), text)
