"""Give an approval more time."""

from __future__ import annotations

from twokey.bot.desk import Desk, Said
from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action
from twokey.bot.listeners.doors import Doors
from twokey.bot.listeners.retiming import retimed
from twokey.bot.listeners.verify_click import verify_click


def register(doors: Doors) -> None:
    """Answer the button More time."""
    doors.on_action(Action.EXTEND, _extend)


async def _extend(desk: Desk, clicked: Clicked) -> Said | None:
    target = await verify_click(desk, clicked, Action.EXTEND)
    approval = target.approval
    reviewer = await desk.reviewer_of(*clicked.who, *approval.items, decides=True)
    result = await desk.service.times.extend(approval.id, reviewer)
    return await retimed(desk, clicked, target, result)
