"""Settle an execution in doubt, after a person has looked what really happened."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.seeing import answered, decide, seen
from gateway.approvals.decisions import Reconcile
from gateway.approvals.record import Finding

_FINDINGS = {
    Action.RECONCILE_EXECUTED: Finding.EXECUTED,
    Action.RECONCILE_RERUN: Finding.RERUN,
    Action.RECONCILE_SKIP: Finding.SKIP,
}


def register(doors: Doors) -> None:
    """Answer the three buttons of a call in doubt."""
    for action in _FINDINGS:
        doors.on_action(action, _reconcile)


async def _reconcile(desk: Desk, clicked: Clicked) -> Said | None:
    action = Action(clicked.action.action_id)
    looked_at = await seen(desk, clicked, action)
    decision = Reconcile(finding=_FINDINGS[action])
    outcome = await decide(desk, looked_at, decision, clicked.who, clicked.digest)
    return answered(outcome, now_ms=looked_at.now_ms)
