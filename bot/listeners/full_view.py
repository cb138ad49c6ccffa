"""Show all of a call in a modal, page by page; require that its reviewer read it.

A call too long for its card can be approved only by a person who opened every page. If
they can open it now, they get the pages instead of a refusal.
"""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.blocks import Block
from keyturn.bot.cards.call_rows import needs_full_view
from keyturn.bot.ids import PAGE, Action, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.targets import (
    Target,
    decide,
    form_reply,
    is_reason_invalid,
    open_view,
    rejected_inputs,
    replace_form,
    sealed_value,
    update_view,
    verify_click,
    verify_place,
    verify_seal,
    verify_submission,
)
from keyturn.bot.modals import call_form, details
from keyturn.bot.modals.details import page_count
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import Plain, template
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName, approval_event
from keyturn.gateway.approvals.raising import shown_item
from keyturn.gateway.protocol.records import Verb

_READ_FIRST: LiteralString = (
    "The card is shortened, so nothing was recorded. Please open Full details and go "
    "through every page first."
)


def register(router: Router) -> None:
    """Answer Full details, the two buttons that turn a page, and Approve."""
    router.on_action(Action.VIEW_ALL, _view_all)
    router.on_action(Action.PAGE_BACK, _turn)
    router.on_action(Action.PAGE_NEXT, _turn)
    router.on_submit(View.DETAILS, _approve)


async def _view_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.VIEW_ALL)
    await open_first_page(ctx, clicked, target)
    return None


async def _turn(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    sealed = sealed_value(ctx, clicked)
    target = await verify_seal(ctx, sealed, PAGE)
    await verify_place(ctx, clicked, target)
    # The page is the one in the seal, so the last page, which has Approve, can only be
    # requested by a button on the page before.
    page = await page_of(ctx, target, sealed.page)
    await update_view(ctx, clicked, target, page)
    await record_view(ctx, target, clicked, sealed.page)
    return None


async def _approve(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.DETAILS)
    errors = details.submitted(target.item, submitted.view.values)
    if errors:
        return rejected_inputs(errors)
    await require_every_page(ctx, target, submitted.view.user)
    if Verb.APPROVE in target.item.requires_reason:
        return await replace_form(ctx, submitted, target, call_form.approval_form)
    outcome = await decide(ctx, target, Approve(), submitted)
    if is_reason_invalid(outcome):
        return await replace_form(ctx, submitted, target, call_form.approval_form)
    return form_reply(outcome, now_ms=target.now_ms)


async def record_page(
    ctx: ListenerContext, target: Target, user: str, number: int
) -> None:
    """Record that a person was shown a page, counted from 1."""
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
    """Record that a person was shown a page of a call, and write an audit entry."""
    user, team = clicked.who
    pages = page_count(target.approval, target.item.index)
    viewed = approval_event(
        target.approval, EventName.APPROVAL_VIEWED, target.item
    ).with_(
        actor=f"{team}/{user}",
        request_digest=clicked.digest,
        data={"page": str(number), "pages": str(pages)},
    )
    # Before it counts: every person who may approve after seeing all of it has an
    # entry.
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
    """Return a page of a call, with the current policy decision and freezes."""
    approval, item = target.approval, target.item
    now = item
    if item.is_pending:
        policy_now = await ctx.service.preview(approval, item.index, item.args)
        now = shown_item(item, policy_now)
    frame = ctx.frame(approval, target.now_ms)
    return details.view(frame, item.index, number, now=now, note=note)


async def has_seen_all(ctx: ListenerContext, target: Target, user: str) -> bool:
    """Return whether a person has seen all of a call: on its card, or every page."""
    # Computed from the record and never stored: the same record gives the same result
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
        UserFacingError: explains the refusal.
    """
    if not await has_seen_all(ctx, target, user):
        raise UserFacingError(template(_READ_FIRST))


def _reader(target: Target, user: str) -> str:
    # With the hash in the key, an edit makes every reviewer read all pages again.
    return f"{user} {target.item.index} {target.item.action_hash}"
