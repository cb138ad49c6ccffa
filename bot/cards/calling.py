"""Call people to a card that waits: a reminder, and those who are called later.

These lines notify people, so each names only those whose word still counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from bot.blocks import (
    Block,
    Template,
    channel,
    code,
    context,
    joined,
    label,
    section,
    template,
    untrusted,
    user,
    usergroup,
)
from bot.cards.fallbacks import of_card
from bot.cards.message import Message
from bot.cards.refs import places, when
from bot.text import fit
from gateway.approvals.record import Approval, Item, Role

_MOST = 10
_NAMES = 200


def reminder(approval: Approval) -> Message:
    """Return the line under a card that reminds everybody who may still decide."""
    roles = [role for item in _waiting(approval) for role in item.demand.roles]
    said = template(
        "⏰ This still waits for you. It expires {at}, and then nothing runs.",
        at=when(approval.expires_at_ms),
    )
    whom = _mentions(approval, roles)
    text = f"This is not decided yet. {of_card(approval)}"
    return Message((section(joined(" ", [*whom, said])),), text)


def asked_again(approval: Approval, reason: str) -> Message:
    """Return the line under a card whose call went back to people, and why."""
    roles = [role for item in _waiting(approval) for role in item.demand.roles]
    said = template(
        "↩ An approval was taken back before the call ran, so this waits for you. It "
        "expires {at}, and then nothing more runs.",
        at=when(approval.expires_at_ms),
    )
    blocks: list[Block] = [section(joined(" ", [*_mentions(approval, roles), said]))]
    if reason:
        blocks.append(context(label(fit(reason, _NAMES))))
    text = f"This waits for a person again. {of_card(approval)}"
    return Message(tuple(blocks), text)


def escalation(approval: Approval) -> Message:
    """Return the line under a card that calls those whom the policy calls later."""
    said = template(
        "📣 This is not decided yet, so others are asked too. It expires {at}.",
        at=when(approval.expires_at_ms),
    )
    whom = _mentions(approval, approval.waiting.roles)
    blocks: list[Block] = [section(joined(" ", [*whom, said]))]
    if approval.waiting.channels:
        told = places(approval.waiting.channels[:_MOST])
        blocks.append(context(label("Told in"), *told))
    text = f"This is not decided yet, so others are asked too. {of_card(approval)}"
    return Message(tuple(blocks), text)


def told_elsewhere(approval: Approval, place: str) -> Message:
    """Return the line for another channel: which tools wait, and where the card is.

    It holds no argument: who reads it may not be allowed to see the card.
    """
    said = template(
        "📣 {id} is not decided yet. Its card is in {where} and expires {at}.",
        id=code(approval.id),
        where=channel(place),
        at=when(approval.expires_at_ms),
    )
    tools = dict.fromkeys(item.tool for item in _waiting(approval))
    named = untrusted(fit(f"{', '.join(tools)} ({approval.agent})", _NAMES))
    text = f"This is not decided yet, so others are asked too. {of_card(approval)}"
    return Message((section(said), section(named)), text)


def _waiting(approval: Approval) -> list[Item]:
    return [item for item in approval.items if item.is_pending]


def _mentions(approval: Approval, roles: Iterable[Role]) -> list[Template]:
    roles = list(roles)
    groups = dict.fromkeys(group for role in roles for group in role.usergroups)
    users = dict.fromkeys(one for role in roles for one in role.users)
    done = _done_with(approval)
    named = [template("{group}", group=usergroup(group)) for group in groups]
    named += [template("{who}", who=user(one)) for one in users if one not in done]
    return named[:_MOST]


def _done_with(approval: Approval) -> set[str]:
    """Return who may not decide, and whose word every waiting call has already."""
    waiting = _waiting(approval)
    voted = [
        {vote.by.user for vote in item.votes if vote.action_hash == item.action_hash}
        | {person.user for person in item.principals}
        for item in waiting
    ]
    everywhere = set[str].intersection(*voted) if voted else set[str]()
    return everywhere | {person.user for person in approval.principals}
