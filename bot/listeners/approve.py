"""Approve one call from its card."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.seeing import answered, decide, seen_on_card
from gateway.approvals.decisions import Approve


def register(doors: Doors) -> None:
    """Answer the button Approve."""
    doors.on_action(Action.APPROVE, _approve)


async def _approve(desk: Desk, clicked: Clicked) -> Said | None:
    seen = await seen_on_card(desk, clicked, Action.APPROVE)
    who = clicked.action.user, clicked.action.user_team
    outcome = await decide(desk, seen, Approve(), who, clicked.digest)
    return answered(outcome, now_ms=seen.now_ms)
