"""Show everything about a call, page by page; the last page can approve it."""

from __future__ import annotations

from twokey.bot.blocks import Block
from twokey.bot.desk import Desk, Said
from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.ids import PAGE, Action, View
from twokey.bot.listeners.doors import Doors, Reply
from twokey.bot.listeners.full_view import need_every_page, saw_page
from twokey.bot.listeners.verify_click import (
    Target,
    decide,
    lacks_reason,
    sealed_value,
    verify_click,
    verify_place,
    verify_seal,
)
from twokey.bot.listeners.views import (
    concluded,
    open_view,
    rejected_inputs,
    replace_form,
    turn_view,
    verify_submission,
)
from twokey.bot.modals import approve, details
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.protocol.verbs import Verb


def register(doors: Doors) -> None:
    """Answer View all, the two buttons that turn a page, and Approve."""
    doors.on_action(Action.VIEW_ALL, _view_all)
    doors.on_action(Action.PAGE_BACK, _turn)
    doors.on_action(Action.PAGE_NEXT, _turn)
    doors.on_submit(View.DETAILS, _submit)


async def _view_all(desk: Desk, clicked: Clicked) -> Said | None:
    target = await verify_click(desk, clicked, Action.VIEW_ALL)
    view = _page(desk, target, 1)
    if clicked.action.view_id and not clicked.is_home:
        await turn_view(desk, clicked, target, view)
    else:
        await open_view(desk, clicked, target, view)
    await saw_page(desk, target, clicked.action.user, 1)
    return None


async def _turn(desk: Desk, clicked: Clicked) -> Said | None:
    sealed = sealed_value(desk, clicked)
    target = await verify_seal(desk, sealed, PAGE)
    await verify_place(desk, clicked, target)
    await turn_view(desk, clicked, target, _page(desk, target, sealed.page))
    await saw_page(desk, target, clicked.action.user, sealed.page)
    return None


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    target = await verify_submission(desk, submitted, View.DETAILS)
    errors = details.submitted(target.item, submitted.view.values)
    if errors:
        return rejected_inputs(errors)
    await need_every_page(desk, target, submitted.view.user)
    if Verb.APPROVE in target.item.requires_reason:
        return await replace_form(desk, submitted, target, approve.view)
    outcome = await decide(desk, target, Approve(), submitted.who, submitted.digest)
    if lacks_reason(outcome):
        return await replace_form(desk, submitted, target, approve.view)
    return concluded(outcome, now_ms=target.now_ms)


def _page(desk: Desk, target: Target, number: int) -> Block:
    return details.view(
        target.approval,
        target.item.index,
        number,
        key=desk.config.seal_key,
        team=desk.team,
        now_ms=target.now_ms,
    )
