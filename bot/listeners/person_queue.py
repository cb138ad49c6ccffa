"""Find the calls that a person may approve, and their own that they may only reject."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.listeners.read_access import Access, access_of
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.permission import denial_reason
from keyturn.gateway.approvals.quorum import is_among
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.verbs import Verb
from keyturn.gateway.service.queue import MAX_OF_PERSON
from keyturn.gateway.store.atomic_write import Loaded

ENOUGH = 1000
"""How many approvals a person's queue holds at most."""


@dataclass(frozen=True, slots=True)
class PersonQueue:
    """What one person can do something about.

    Attributes:
        mine: what they may approve and have not.
        own: what they asked for or changed, and may only reject.
        is_complete: False when Slack left open what they may decide.
        calls: how many calls of each approval of `mine` wait for them, by its id.
        looked_at: how many approvals were looked at, when there may be more; else 0.
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
    """Return what waits for a person of this workspace.

    Args:
        ctx: what the listener works with.
        user: the person.
        read: approvals that were read a moment ago, by id; what is read is added.
        is_glance: ask Slack no more than it said within a minute; see `reviewer_of`.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    # Once for all of them: each lookup takes its turn at Slack's rate limits. What
    # Slack said of a group that an item does not name is no reason for or against it.
    groups = await ctx.service.queue.groups()
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is not None:
        groups = groups.union(*map(ctx.service.usergroups, seeded.approval.items))
    reviewer = await ctx.person_among(user, groups, is_glance=is_glance)
    mine: list[Approval] = []
    own: list[Approval] = []
    calls: dict[str, int] = {}
    is_complete, looked_at, is_cut = True, 0, False
    async for approval in _read(ctx, reviewer, seeded, read):
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


async def _read(
    ctx: ListenerContext,
    reviewer: Reviewer,
    seeded: Loaded | None,
    read: dict[str, Loaded] | None,
) -> AsyncGenerator[Approval]:
    """Yield what may wait for a person, the seeded defect first."""
    if seeded is not None:
        yield seeded.approval
    people = (reviewer, *reviewer.stands_in_for)
    async for loaded in ctx.service.queue.concerning(people, read):
        yield loaded.approval


def waits_for(reviewer: Reviewer, approval: Approval, item: Item) -> Access:
    """Return whether a call waits for this person's decision."""
    if not item.is_pending or _has_voted(reviewer, item):
        return Access(is_given=False)
    return access_of(approval, item, reviewer)


def _may_end(reviewer: Reviewer, approval: Approval) -> bool:
    """Return whether a person may reject what they asked for or changed here.

    Everybody else who may reject may approve as well, or has done so.
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
