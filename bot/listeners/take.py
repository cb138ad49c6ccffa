"""Tell the others that somebody looks at an approval."""

from __future__ import annotations

from twokey.bot.desk import Desk, Said
from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action
from twokey.bot.listeners.doors import Doors
from twokey.bot.listeners.retiming import retimed
from twokey.bot.listeners.verify_click import verify_click


def register(doors: Doors) -> None:
    """Answer the button I'm on it."""
    doors.on_action(Action.TAKE, _take)


async def _take(desk: Desk, clicked: Clicked) -> Said | None:
    target = await verify_click(desk, clicked, Action.TAKE)
    approval = target.approval
    reviewer = await desk.reviewer_of(*clicked.who, *approval.items, decides=True)
    result = await desk.service.times.take(approval.id, reviewer)
    return await retimed(desk, clicked, target, result)
