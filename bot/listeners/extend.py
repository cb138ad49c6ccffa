"""Give an approval more time."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.retiming import retimed
from bot.listeners.seeing import seen


def register(doors: Doors) -> None:
    """Answer the button More time."""
    doors.on_action(Action.EXTEND, _extend)


async def _extend(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.EXTEND)
    approval = looked_at.approval
    reviewer = await desk.reviewer_of(*clicked.who, *approval.items, decides=True)
    result = await desk.service.times.extend(approval.id, reviewer)
    return await retimed(desk, clicked, looked_at, result)
