"""Take what a person found out about an execution in doubt, with their note."""

from __future__ import annotations

from bot.desk import Desk
from bot.gestures import Submitted
from bot.ids import Input, View
from bot.listeners.doors import Doors, Reply
from bot.listeners.seeing import decide
from bot.listeners.views import concluded, rejected_inputs, seen_in_view
from bot.modals import reconcile
from gateway.approvals.decisions import Invalid, Reconcile


def register(doors: Doors) -> None:
    """Answer the submitted form."""
    doors.on_submit(View.RECONCILE, _submit)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.RECONCILE)
    said = reconcile.submitted(submitted.view.values)
    if said.finding is None:
        return rejected_inputs(said.errors)
    decision = Reconcile(finding=said.finding, note=said.note)
    outcome = await decide(desk, looked_at, decision, submitted.who, submitted.digest)
    if isinstance(outcome, Invalid):
        return rejected_inputs({Input.NOTE: " ".join(outcome.errors.values())})
    return concluded(outcome, now_ms=looked_at.now_ms)
