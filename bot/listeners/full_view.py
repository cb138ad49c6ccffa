"""Require that a user has opened every page of a call too long for its card.

Where they can open it now, it is shown to them instead of a refusal.
"""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.blocks import Block
from keyturn.bot.cards.call_rows import needs_full_view
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.verify_click import Target
from keyturn.bot.listeners.views import open_view, update_view
from keyturn.bot.modals import details
from keyturn.bot.modals.details import page_count
from keyturn.bot.payload import Clicked
from keyturn.bot.text_types import Plain, template
from keyturn.gateway.approvals.events import EventName, approval_event
from keyturn.gateway.approvals.raising import shown_item

_READ_FIRST: LiteralString = (
    "This call is longer than its card, so nothing was recorded. Please open Full "
    "details and go through every page first."
)


async def record_page(
    ctx: ListenerContext, target: Target, user: str, number: int
) -> None:
    """Note that somebody was shown a page, counted from 1."""
    approval, index = target.approval, target.item.index
    await ctx.service.store.read_pages.opened_page(
        target.keys,
        approval.id,
        reader=_reader(target, user),
        page=number - 1,
        pages=page_count(approval, index),
    )


async def record_view(
    ctx: ListenerContext, target: Target, clicked: Clicked, number: int
) -> None:
    """Note that somebody was shown a page of a call, and write it to the audit log."""
    user, team = clicked.who
    pages = page_count(target.approval, target.item.index)
    viewed = approval_event(
        target.approval, EventName.APPROVAL_VIEWED, target.item
    ).with_(
        actor=f"{team}/{user}",
        request_digest=clicked.digest,
        data={"page": str(number), "pages": str(pages)},
    )
    # Before it counts: who may approve because they saw all of it has an entry.
    await ctx.service.store.audit(target.keys).append(viewed)
    await record_page(ctx, target, user, number)


async def open_first_page(
    ctx: ListenerContext, clicked: Clicked, target: Target, *, note: Plain | None = None
) -> None:
    """Show all of a call, from its first page; raises `UserFacingError`."""
    view = await page_of(ctx, target, 1, note=note)
    if clicked.action.view_id and not clicked.action.is_home:
        await update_view(ctx, clicked, target, view)
    else:
        await open_view(ctx, clicked, target, view)
    # After the page was shown. The other order would count a page that Slack did not
    # show in time.
    await record_view(ctx, target, clicked, 1)


async def page_of(
    ctx: ListenerContext, target: Target, number: int, *, note: Plain | None = None
) -> Block:
    """Return a page of a call, and with it what the policy and freezes say by now."""
    approval, item = target.approval, target.item
    now = item
    if item.is_pending:
        policy_now = await ctx.service.preview(approval, item.index, item.args)
        now = shown_item(item, policy_now)
    frame = ctx.frame(approval, target.now_ms)
    return details.view(frame, item.index, number, now=now, note=note)


async def has_seen_all(ctx: ListenerContext, target: Target, user: str) -> bool:
    """Return whether a person has seen all of a call: on its card, or every page."""
    # Computed from the record and never kept: the same record gives the same answer
    # when a form is opened and when it is submitted, on every bot.
    is_long = needs_full_view(target.approval, target.item.index)
    return not is_long or await _has_opened(ctx, target, user)


async def require_every_page(ctx: ListenerContext, target: Target, user: str) -> None:
    """Refuse a person who has not opened every page; raises `UserFacingError`."""
    if not await _has_opened(ctx, target, user):
        raise UserFacingError(template(_READ_FIRST))


async def _has_opened(ctx: ListenerContext, target: Target, user: str) -> bool:
    approval, index = target.approval, target.item.index
    return await ctx.service.store.read_pages.has_opened(
        target.keys,
        approval.id,
        reader=_reader(target, user),
        pages=page_count(approval, index),
    )


async def require_full_view(ctx: ListenerContext, target: Target, user: str) -> None:
    """Refuse a person who has not seen all of a call longer than its card.

    Raises:
        UserFacingError: says why not.
    """
    if not await has_seen_all(ctx, target, user):
        raise UserFacingError(template(_READ_FIRST))


def _reader(target: Target, user: str) -> str:
    # With the hash in the key, an edit makes every reviewer read all pages again.
    return f"{user} {target.item.index} {target.item.action_hash}"
