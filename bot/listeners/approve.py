"""Approve one call from its card."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.seeing import answered, decide, seen
from gateway.approvals.decisions import Approve


def register(doors: Doors) -> None:
    """Answer the button Approve."""
    doors.on_action(Action.APPROVE, _approve)


async def _approve(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.APPROVE)
    outcome = await decide(desk, looked_at, Approve(), clicked.who, clicked.digest)
    return answered(outcome, now_ms=looked_at.now_ms)
