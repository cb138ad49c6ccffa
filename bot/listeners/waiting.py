"""Load the calls that wait for people; a seeded defect is among them."""

from __future__ import annotations

from collections.abc import Iterable

from twokey.bot.listener_context import ListenerContext
from twokey.gateway.approvals.short_id import SHORT_CHARS
from twokey.gateway.service.away_parts import AwayParts
from twokey.gateway.service.queue import MAX_QUEUE
from twokey.gateway.store.atomic_write import Loaded


async def waiting(ctx: ListenerContext, away: AwayParts) -> list[Loaded]:
    """Return what waits for anybody, the soonest due first.

    Args:
        ctx: of the tenant.
        away: parts that do not answer, which are left out.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    found = [one async for one in ctx.service.queue.waiting(MAX_QUEUE, away=away)]
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is None:
        return found
    every = sorted([*found, seeded], key=lambda one: one.approval.expires_at_ms)
    return every[:MAX_QUEUE]


async def concerning(
    ctx: ListenerContext, user: str, away: AwayParts
) -> tuple[list[Loaded], int]:
    """Return what a person may decide or asked for, whatever waits for others.

    Args:
        ctx: of the tenant.
        user: the person.
        away: parts that do not answer, which are left out.

    Returns:
        What may be theirs, the soonest due first; and how many that is where there is
        more, else 0.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    queue, found = ctx.service.queue, list[Loaded]()
    reviewer = await ctx.person_among(user, await queue.groups(away=away))
    people = (reviewer, *reviewer.stands_in_for)
    async for loaded in queue.concerning(people, away=away):
        if len(found) == MAX_QUEUE:
            return found, len(found)
        found.append(loaded)
    return found, 0


async def read_typed(
    ctx: ListenerContext, typed: str, digits: str, away: AwayParts
) -> list[Loaded]:
    """Return what an id of somebody may name; raises `StoreUnavailable`.

    Args:
        ctx: of the tenant.
        typed: an id, or the beginning of one with or without what stands before its
            random part.
        digits: the random part of it, a short id at least.
        away: parts that do not answer, which are left out.
    """
    # A whole id directly: older versions opened approvals without a short id.
    keys = ctx.service.store.keys_of_approval(typed)
    if keys is not None:
        known = await away.read(keys, ctx.service.read(typed))
        if found := [one for one in known if one is not None]:
            return found
    short = digits[:SHORT_CHARS]
    found = await ctx.service.queue.read_short(short, away=away)
    found += await ctx.service.collected_cards.read_short(short, away=away)
    seeded = await ctx.service.seeded_defects.waiting()
    return [
        one
        for one in [*found, *([seeded] if seeded else [])]
        if one.approval.id.startswith(typed)
        or one.approval.id.rpartition("_")[2].startswith(typed)
    ]


async def read_each(ctx: ListenerContext, approval_ids: Iterable[str]) -> list[Loaded]:
    """Return those of these that are there; raises `StoreUnavailable`."""
    ids = [*approval_ids]
    return [*await ctx.service.queue.read_each(ids), *await _seeded(ctx, ids)]


async def _seeded(ctx: ListenerContext, ids: list[str]) -> list[Loaded]:
    seeded = await ctx.service.seeded_defects.waiting()
    return [seeded] if seeded is not None and seeded.approval.id in ids else []
