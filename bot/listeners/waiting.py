"""Load the calls that wait for people; a seeded defect is among them."""

from __future__ import annotations

from collections.abc import Iterable

from keyturn.bot.listener_context import ListenerContext
from keyturn.gateway.approvals.record import SHORT_CHARS
from keyturn.gateway.service.queue import MAX_QUEUE
from keyturn.gateway.store.atomic_write import Loaded


async def waiting(ctx: ListenerContext) -> list[Loaded]:
    """Return what waits for anybody, the soonest due first.

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
    """Return what a person may decide or asked for, whatever waits for others.

    Args:
        ctx: of the tenant.
        user: the person.

    Returns:
        What may be theirs, the soonest due first; and how many that is where there is
        more, else 0.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    queue, found = ctx.service.queue, list[Loaded]()
    reviewer = await ctx.person_among(user, await queue.groups())
    people = (reviewer, *reviewer.stands_in_for)
    async for loaded in queue.concerning(people):
        if len(found) == MAX_QUEUE:
            return found, len(found)
        found.append(loaded)
    return found, 0


async def read_typed(ctx: ListenerContext, typed: str, digits: str) -> list[Loaded]:
    """Return what an id of somebody may name; raises `StoreUnavailable`.

    Args:
        ctx: of the tenant.
        typed: an id, or the beginning of one with or without what stands before its
            random part.
        digits: the random part of it, a short id at least.
    """
    # A whole id names one approval; its first digits may name several.
    if (known := await ctx.service.read(typed)) is not None:
        return [known]
    short = digits[:SHORT_CHARS]
    found = await ctx.service.queue.read_short(short)
    found += await ctx.service.collected_cards.read_short(short)
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
