"""Approve a call from the last page of its full view."""

from __future__ import annotations

from bot.desk import Desk
from bot.gestures import Submitted
from bot.ids import View
from bot.listeners.doors import Doors, Reply
from bot.listeners.full_view import need_every_page
from bot.listeners.seeing import decide
from bot.listeners.views import concluded, rejected_inputs, seen_in_view
from bot.modals import details
from gateway.approvals.decisions import Approve


def register(doors: Doors) -> None:
    """Answer the submitted last page."""
    doors.on_submit(View.DETAILS, _submit)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.DETAILS)
    errors = details.submitted(looked_at.item, submitted.view.values)
    if errors:
        return rejected_inputs(errors)
    await need_every_page(desk, looked_at, submitted.view.user)
    outcome = await decide(desk, looked_at, Approve(), submitted.who, submitted.digest)
    return concluded(outcome, now_ms=looked_at.now_ms)
