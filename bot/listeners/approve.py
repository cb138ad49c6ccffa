"""Approve one call from its card: at once, or with the reason that it needs."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.seeing import answered, decide, lacks_reason, permitted, seen
from bot.listeners.views import open_view
from bot.modals import approve
from gateway.approvals.decisions import Approve
from gateway.approvals.record import Verb


def register(doors: Doors) -> None:
    """Answer the button Approve."""
    doors.on_action(Action.APPROVE, _approve)


async def _approve(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.APPROVE)
    if Verb.APPROVE not in looked_at.item.requires_reason:
        outcome = await decide(desk, looked_at, Approve(), clicked.who, clicked.digest)
        if not lacks_reason(outcome):
            return answered(outcome, now_ms=looked_at.now_ms)
    # Also where only the policy of now asks for a reason.
    await permitted(desk, looked_at, Verb.APPROVE, clicked.who)
    approval, index = looked_at.approval, looked_at.item.index
    view = approve.view(approval, index, key=desk.config.seal_key, team=desk.team)
    await open_view(desk, clicked, looked_at, view)
    return None
