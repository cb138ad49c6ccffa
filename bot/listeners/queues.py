"""Find the calls that a person can decide, and those that a person may read.

The bot does not know the members of a channel. A person who types a command in a
channel can read it, so the answer may name the approvals whose cards are there. From
other channels it names only approvals that the person may decide or requested. A seeded
defect is among the pending calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass

from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.payload import Command
from keyturn.bot.web import newest_id
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.permission import denial_reason
from keyturn.gateway.approvals.quorum import is_among, unresolved_roles
from keyturn.gateway.approvals.record import SHORT_CHARS, Approval, Item
from keyturn.gateway.protocol.records import Person, Verb
from keyturn.gateway.service.queue import MAX_OF_PERSON, MAX_QUEUE
from keyturn.gateway.store.atomic_write import Loaded


@dataclass(frozen=True, slots=True)
class Access:
    """Whether a person may read or decide; ``is_unknown`` if Slack did not answer."""

    is_given: bool
    is_unknown: bool = False


async def access_to(
    ctx: ListenerContext, command: Command, approval: Approval
) -> Access:
    """Return whether the member who typed a command may read an approval."""
    # Slack reports the channel of the command, and only its readers can type in it.
    return await reader_access(ctx, command.user, command.channel, approval)


async def reader_access(
    ctx: ListenerContext, user: str, channel: str, approval: Approval
) -> Access:
    """Return whether a member who reads in a channel may read an approval.

    ``channel`` is empty outside of channels.
    """
    asked = approval.requester
    if asked and asked.is_same(Person(team=ctx.team, user=user)):
        return Access(is_given=True)
    if channel and await _channel_of(ctx, approval) == channel:
        return Access(is_given=True)
    found = [
        access_of(approval, item, await ctx.reviewer_of(user, ctx.team, item))
        for item in approval.items
    ]
    return Access(
        is_given=any(one.is_given for one in found),
        is_unknown=any(one.is_unknown for one in found),
    )


def access_of(approval: Approval, item: Item, reviewer: Reviewer) -> Access:
    """Return whether a person may decide an item, by Slack's answers about them."""
    if denial_reason(approval, item, reviewer, Verb.APPROVE) is None:
        return Access(is_given=True)
    # UNKNOWN counts as open, not as yes: the person learns that the list may be
    # incomplete.
    is_colleague = reviewer.account in {AccountKind.MEMBER, AccountKind.UNKNOWN}
    is_unknown = bool(unresolved_roles(reviewer, item.requirement.roles))
    return Access(is_given=False, is_unknown=is_colleague and is_unknown)


async def _channel_of(ctx: ListenerContext, approval: Approval) -> str:
    """Return the channel whose members read the card.

    An intruder in Redis can write another place of a card there, so the place counts
    only in the channel of the sealed record and in the fallback channel.
    """
    store, config = ctx.service.store, ctx.config
    moved = await store.moved_channels.known(ctx.keys)
    place = await store.cards.place(ctx.keys, approval.id)
    own, fallback = (
        newest_id(one, moved) for one in (approval.channel, config.fallback_channel)
    )
    is_diverted = place is not None and newest_id(place.channel, moved) == fallback
    return fallback if is_diverted else own


ENOUGH = 1000
"""Maximum number of approvals in a person's queue."""


@dataclass(frozen=True, slots=True)
class PersonQueue:
    """The approvals that one person can act on.

    Attributes:
        mine: those they may approve and have not.
        own: those they requested or changed, and may only reject.
        is_complete: False if Slack did not return all of their groups.
        calls: number of pending calls for them in each approval of `mine`, by its id.
        looked_at: number of approvals checked, if there may be more; else 0.
    """

    mine: tuple[Approval, ...]
    own: tuple[Approval, ...]
    is_complete: bool
    calls: Mapping[str, int]
    looked_at: int = 0


async def queue_of(
    ctx: ListenerContext,
    user: str,
    read: dict[str, Loaded] | None = None,
    *,
    is_glance: bool = False,
) -> PersonQueue:
    """Return the queue of a person of this workspace.

    Args:
        ctx: the listener's dependencies.
        user: the person.
        read: approvals that were read a moment ago, by id; this adds to it.
        is_glance: accept Slack's answers of the last minute; see `reviewer_of`.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    # Once for all of them, because lookups share Slack's rate limits. Answers about
    # groups that an item does not name do not affect it.
    groups = await ctx.service.queue.groups(read)
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is not None:
        groups = groups.union(*map(ctx.service.usergroups, seeded.approval.items))
    reviewer = await ctx.person_among(user, groups, is_glance=is_glance)
    mine: list[Approval] = []
    own: list[Approval] = []
    calls: dict[str, int] = {}
    is_complete, looked_at, is_cut = True, 0, False
    async for approval in _read_of_person(ctx, reviewer, seeded, read):
        is_cut = len(mine) + len(own) >= ENOUGH or looked_at >= MAX_OF_PERSON
        if is_cut:
            break
        looked_at += 1
        found = [waits_for(reviewer, approval, item) for item in approval.items]
        count = sum(one.is_given for one in found)
        is_complete &= bool(count) or not any(one.is_unknown for one in found)
        if count:
            mine.append(approval)
            calls[approval.id] = count
        elif _may_end(reviewer, approval):
            own.append(approval)
    return PersonQueue(
        tuple(mine), tuple(own), is_complete, calls, looked_at if is_cut else 0
    )


async def _read_of_person(
    ctx: ListenerContext,
    reviewer: Reviewer,
    seeded: Loaded | None,
    read: dict[str, Loaded] | None,
) -> AsyncGenerator[Approval]:
    """Yield the candidates for a person's queue, the seeded defect first."""
    if seeded is not None:
        yield seeded.approval
    people = (reviewer, *reviewer.stands_in_for)
    async for loaded in ctx.service.queue.concerning(people, read):
        yield loaded.approval


def waits_for(reviewer: Reviewer, approval: Approval, item: Item) -> Access:
    """Return whether a call needs this person's decision."""
    if not item.is_pending or _has_voted(reviewer, item):
        return Access(is_given=False)
    return access_of(approval, item, reviewer)


def _may_end(reviewer: Reviewer, approval: Approval) -> bool:
    """Return whether a person may reject an approval that they requested or changed.

    Other people who may reject may approve as well, or have done so.
    """
    for item in approval.items:
        took_part = [*approval.principals, *item.principals]
        took_part += [item.edit.by] if item.edit else []
        if not item.is_pending or Verb.REJECT not in item.allow:
            continue
        if not is_among(reviewer.person, took_part) or _has_voted(reviewer, item):
            continue
        if denial_reason(approval, item, reviewer, Verb.REJECT) is None:
            return True
    return False


def _has_voted(reviewer: Reviewer, item: Item) -> bool:
    # Only members of this workspace vote, so the user id alone names one.
    votes = (vote for vote in item.votes if vote.action_hash == item.action_hash)
    return any(vote.by.user == reviewer.user for vote in votes)


async def waiting(ctx: ListenerContext) -> list[Loaded]:
    """Return all pending approvals, the earliest deadline first.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    found = [one async for one in ctx.service.queue.waiting(MAX_QUEUE)]
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is None:
        return found
    every = sorted([*found, seeded], key=lambda one: one.approval.expires_at_ms)
    return every[:MAX_QUEUE]


async def concerning(ctx: ListenerContext, user: str) -> tuple[list[Loaded], int]:
    """Return the approvals that a person may decide or requested.

    Args:
        ctx: of the tenant.
        user: the person.

    Returns:
        The candidates, the earliest deadline first; and their number if there are more,
            else 0.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    queue, found, read = ctx.service.queue, list[Loaded](), dict[str, Loaded]()
    reviewer = await ctx.person_among(user, await queue.groups(read))
    people = (reviewer, *reviewer.stands_in_for)
    async for loaded in queue.concerning(people, read):
        if len(found) == MAX_QUEUE:
            return found, len(found)
        found.append(loaded)
    return found, 0


async def read_typed(ctx: ListenerContext, typed: str, digits: str) -> list[Loaded]:
    """Return the approvals that a typed id may name; raises `StoreUnavailable`.

    Args:
        ctx: of the tenant.
        typed: an id, or the beginning of one, with or without the prefix before its
            random part.
        digits: its random part, at least a short id.
    """
    # A whole id names one approval; its first digits may name several.
    if (known := await ctx.service.read(typed)) is not None:
        return [known]
    short = digits[:SHORT_CHARS]
    found = await ctx.service.queue.read_short(short)
    found += await ctx.service.read_collected_short(short)
    seeded = await ctx.service.seeded_defects.waiting()
    return [
        one
        for one in [*found, *([seeded] if seeded else [])]
        if one.approval.id.startswith(typed)
        or one.approval.id.rpartition("_")[2].startswith(typed)
    ]


async def read_each(ctx: ListenerContext, approval_ids: Iterable[str]) -> list[Loaded]:
    """Return the existing approvals among these; raises `StoreUnavailable`."""
    ids = [*approval_ids]
    return [*await ctx.service.queue.read_each(ids), *await _seeded(ctx, ids)]


async def _seeded(ctx: ListenerContext, ids: list[str]) -> list[Loaded]:
    seeded = await ctx.service.seeded_defects.waiting()
    return [seeded] if seeded is not None and seeded.approval.id in ids else []
