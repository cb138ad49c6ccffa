"""Show all of a call in a modal, page by page; the last page can approve it."""

from __future__ import annotations

from keyturn.bot.ids import PAGE, Action, View
from keyturn.bot.listener_context import ListenerContext, UserText
from keyturn.bot.listeners.full_view import (
    open_first_page,
    page_of,
    record_view,
    require_every_page,
)
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    decide,
    is_reason_invalid,
    sealed_value,
    verify_click,
    verify_place,
    verify_seal,
)
from keyturn.bot.listeners.views import (
    form_reply,
    rejected_inputs,
    replace_form,
    update_view,
    verify_submission,
)
from keyturn.bot.modals import call_form, details
from keyturn.bot.payload import Clicked, Submitted
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer Full details, the two buttons that turn a page, and Approve."""
    router.on_action(Action.VIEW_ALL, _view_all)
    router.on_action(Action.PAGE_BACK, _turn)
    router.on_action(Action.PAGE_NEXT, _turn)
    router.on_submit(View.DETAILS, _submit)


async def _view_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.VIEW_ALL)
    await open_first_page(ctx, clicked, target)
    return None


async def _turn(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    sealed = sealed_value(ctx, clicked)
    target = await verify_seal(ctx, sealed, PAGE)
    await verify_place(ctx, clicked, target)
    # The page is the one in the seal, so nobody can ask for the last page, which has
    # Approve, without a button that was on the page before.
    page = await page_of(ctx, target, sealed.page)
    await update_view(ctx, clicked, target, page)
    await record_view(ctx, target, clicked, sealed.page)
    return None


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
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
