"""Show everything about a call, page by page; the last page can approve it."""

from __future__ import annotations

from bot.blocks import Block
from bot.desk import Desk, Said
from bot.gestures import Clicked, Submitted
from bot.ids import PAGE, Action, View
from bot.listeners.doors import Doors, Reply
from bot.listeners.full_view import need_every_page, saw_page
from bot.listeners.seeing import (
    Seen,
    decide,
    lacks_reason,
    opened,
    proven_place,
    sealed_value,
    seen,
)
from bot.listeners.views import (
    concluded,
    open_view,
    rejected_inputs,
    replace_form,
    seen_in_view,
    turn_view,
)
from bot.modals import approve, details
from gateway.approvals.decisions import Approve
from gateway.approvals.record import Verb


def register(doors: Doors) -> None:
    """Answer View all, the two buttons that turn a page, and Approve."""
    doors.on_action(Action.VIEW_ALL, _view_all)
    doors.on_action(Action.PAGE_BACK, _turn)
    doors.on_action(Action.PAGE_NEXT, _turn)
    doors.on_submit(View.DETAILS, _submit)


async def _view_all(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.VIEW_ALL)
    view = _page(desk, looked_at, 1)
    if clicked.action.view_id and not clicked.is_home:
        await turn_view(desk, clicked, looked_at, view)
    else:
        await open_view(desk, clicked, looked_at, view)
    await saw_page(desk, looked_at, clicked.action.user, 1)
    return None


async def _turn(desk: Desk, clicked: Clicked) -> Said | None:
    sealed = sealed_value(desk, clicked)
    looked_at = await opened(desk, sealed, PAGE)
    await proven_place(desk, clicked, looked_at)
    await turn_view(desk, clicked, looked_at, _page(desk, looked_at, sealed.page))
    await saw_page(desk, looked_at, clicked.action.user, sealed.page)
    return None


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.DETAILS)
    errors = details.submitted(looked_at.item, submitted.view.values)
    if errors:
        return rejected_inputs(errors)
    await need_every_page(desk, looked_at, submitted.view.user)
    if Verb.APPROVE in looked_at.item.requires_reason:
        return await replace_form(desk, submitted, looked_at, approve.view)
    outcome = await decide(desk, looked_at, Approve(), submitted.who, submitted.digest)
    if lacks_reason(outcome):
        return await replace_form(desk, submitted, looked_at, approve.view)
    return concluded(outcome, now_ms=looked_at.now_ms)


def _page(desk: Desk, looked_at: Seen, number: int) -> Block:
    return details.view(
        looked_at.approval,
        looked_at.item.index,
        number,
        key=desk.config.seal_key,
        team=desk.team,
        now_ms=looked_at.now_ms,
    )
