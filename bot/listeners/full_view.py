"""Require that a user has opened every page of a call too long for its card."""

from __future__ import annotations

from typing import LiteralString

from twokey.bot.cards.call_rows import needs_full_view
from twokey.bot.listener_context import ListenerContext, UserFacingError
from twokey.bot.listeners.verify_click import Target
from twokey.bot.modals.details import page_count
from twokey.bot.text_types import template

_READ_FIRST: LiteralString = (
    "This call is longer than its card, so nothing was recorded. Please open View all "
    "and go through every page first."
)


async def record_page(
    ctx: ListenerContext, target: Target, user: str, number: int
) -> None:
    """Note that somebody was shown a page, counted from 1."""
    approval, index = target.approval, target.item.index
    await ctx.service.store.cards.opened_page(
        target.keys,
        approval.id,
        reader=_reader(target, user),
        page=number - 1,
        pages=page_count(approval, index),
    )


async def require_every_page(ctx: ListenerContext, target: Target, user: str) -> None:
    """Refuse a person who has not opened every page; raises `UserFacingError`."""
    approval, index = target.approval, target.item.index
    has_opened = await ctx.service.store.cards.has_opened(
        target.keys,
        approval.id,
        reader=_reader(target, user),
        pages=page_count(approval, index),
    )
    if not has_opened:
        raise UserFacingError(template(_READ_FIRST))


async def require_full_view(ctx: ListenerContext, target: Target, user: str) -> None:
    """Refuse a person who has not seen all of a call longer than its card.

    Raises:
        UserFacingError: says why not.
    """
    # Computed from the record and never kept: the same record gives the same answer
    # when a form is opened and when it is submitted, on every bot.
    if needs_full_view(target.approval, target.item.index):
        await require_every_page(ctx, target, user)


def _reader(target: Target, user: str) -> str:
    # With the hash in the key, an edit makes every reviewer read all pages again.
    return f"{user} {target.item.index} {target.item.action_hash}"
