"""Take an approval with its reason."""

from __future__ import annotations

from bot.desk import Desk
from bot.gestures import Submitted
from bot.ids import Input, View
from bot.listeners.doors import Doors, Reply
from bot.listeners.full_view import need_full_view
from bot.listeners.seeing import decide
from bot.listeners.views import concluded, rejected_inputs, seen_in_view
from bot.modals import approve
from gateway.approvals.decisions import Approve, Invalid


def register(doors: Doors) -> None:
    """Answer the submitted form."""
    doors.on_submit(View.APPROVE, _submit)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.APPROVE)
    await need_full_view(desk, looked_at, submitted.view.user)
    said = approve.submitted(submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    decision = Approve(reason=said.reason)
    outcome = await decide(desk, looked_at, decision, submitted.who, submitted.digest)
    if isinstance(outcome, Invalid):
        return rejected_inputs({Input.REASON: " ".join(outcome.errors.values())})
    return concluded(outcome, now_ms=looked_at.now_ms)
