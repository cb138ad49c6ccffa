"""Decide which approvals a person may read: as reviewer, requester or in a channel.

The bot does not know the members of a channel. A person who types a command in a
channel can read it, so the answer may name the approvals whose cards are there. Of
other channels it names only those that the person may decide or asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyturn.bot.delivery.conversation_links import newest_id
from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.payload import Command
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.membership import unresolved_roles
from keyturn.gateway.approvals.permission import denial_reason
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.verbs import Verb


@dataclass(frozen=True, slots=True)
class Access:
    """Whether somebody may read or decide; ``is_unknown`` when Slack did not say."""

    is_given: bool
    is_unknown: bool = False


async def access_to(
    ctx: ListenerContext, command: Command, approval: Approval
) -> Access:
    """Return whether the member who typed a command may read an approval."""
    # Slack says in which channel the command was typed, and lets nobody type in a
    # channel that they cannot read.
    return await reader_access(ctx, command.user, command.channel, approval)


async def reader_access(
    ctx: ListenerContext, user: str, channel: str, approval: Approval
) -> Access:
    """Return whether a member who reads in a channel may read an approval.

    ``channel`` is empty where they read outside of channels.
    """
    asked = approval.requester
    if asked and asked.is_same(Person(team=ctx.team, user=user)):
        return Access(is_given=True)
    if channel and await _channel_of(ctx, approval) == channel:
        return Access(is_given=True)
    found = [await may_decide(ctx, user, approval, item) for item in approval.items]
    return Access(
        is_given=any(one.is_given for one in found),
        is_unknown=any(one.is_unknown for one in found),
    )


async def may_decide(
    ctx: ListenerContext, user: str, approval: Approval, item: Item
) -> Access:
    """Return whether somebody of this workspace may decide an item."""
    return access_of(approval, item, await ctx.reviewer_of(user, ctx.team, item))


def access_of(approval: Approval, item: Item, reviewer: Reviewer) -> Access:
    """Return whether somebody may decide an item, by what Slack said of them."""
    if denial_reason(approval, item, reviewer, Verb.APPROVE) is None:
        return Access(is_given=True)
    # UNKNOWN counts as open, not as yes: the person reads that the list may be
    # incomplete.
    is_colleague = reviewer.account in {AccountKind.MEMBER, AccountKind.UNKNOWN}
    is_unknown = bool(unresolved_roles(reviewer, item.requirement.roles))
    return Access(is_given=False, is_unknown=is_colleague and is_unknown)


async def _channel_of(ctx: ListenerContext, approval: Approval) -> str:
    """Return the channel whose members read the card.

    Anybody with Redis can write another place of a card there, so it counts in the
    channel of the sealed record and in the fallback channel alone.
    """
    store, config = ctx.service.store, ctx.config
    moved = await store.moved_channels.known(ctx.keys)
    place = await store.cards.place(ctx.keys, approval.id)
    own, fallback = (
        newest_id(one, moved) for one in (approval.channel, config.fallback_channel)
    )
    is_diverted = place is not None and newest_id(place.channel, moved) == fallback
    return fallback if is_diverted else own
