"""Take a rejection and its reason."""

from __future__ import annotations

from bot.desk import Desk
from bot.gestures import Submitted
from bot.ids import Input, View
from bot.listeners.doors import Doors, Reply
from bot.listeners.seeing import decide
from bot.listeners.views import concluded, rejected_inputs, seen_in_view
from bot.modals import reject
from gateway.approvals.decisions import Invalid, Reject


def register(doors: Doors) -> None:
    """Answer the submitted form."""
    doors.on_submit(View.REJECT, _submit)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.REJECT)
    said = reject.submitted(looked_at.item, submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    decision = Reject(reason=said.reason)
    outcome = await decide(desk, looked_at, decision, submitted.who, submitted.digest)
    if isinstance(outcome, Invalid):
        return rejected_inputs({Input.REASON: " ".join(outcome.errors.values())})
    return concluded(outcome, now_ms=looked_at.now_ms)
