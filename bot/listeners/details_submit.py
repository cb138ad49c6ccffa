"""Approve a call from the last page of its full view."""

from __future__ import annotations

from bot.desk import Desk
from bot.gestures import Submitted
from bot.ids import View
from bot.listeners.doors import Doors, Reply
from bot.listeners.full_view import need_every_page
from bot.listeners.seeing import Seen, decide, lacks_reason
from bot.listeners.views import bind, concluded, rejected_inputs, seen_in_view
from bot.modals import approve, details
from gateway.approvals.decisions import Approve
from gateway.approvals.record import Verb


def register(doors: Doors) -> None:
    """Answer the submitted last page."""
    doors.on_submit(View.DETAILS, _submit)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.DETAILS)
    errors = details.submitted(looked_at.item, submitted.view.values)
    if errors:
        return rejected_inputs(errors)
    await need_every_page(desk, looked_at, submitted.view.user)
    if Verb.APPROVE in looked_at.item.requires_reason:
        return await _asked_why(desk, looked_at, submitted)
    outcome = await decide(desk, looked_at, Approve(), submitted.who, submitted.digest)
    if lacks_reason(outcome):
        return await _asked_why(desk, looked_at, submitted)
    return concluded(outcome, now_ms=looked_at.now_ms)


async def _asked_why(desk: Desk, looked_at: Seen, submitted: Submitted) -> Reply:
    """Show the form for the reason in place of the full view."""
    approval, index = looked_at.approval, looked_at.item.index
    view = approve.view(approval, index, key=desk.config.seal_key, team=desk.team)
    await bind(desk, submitted.view.view_id, submitted.view.user, looked_at, view)
    return {"response_action": "update", "view": view}
