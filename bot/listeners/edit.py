"""Open the form in which one call is edited."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.full_view import need_full_view
from bot.listeners.seeing import permitted, seen
from bot.listeners.views import open_view
from bot.modals import edit
from gateway.approvals.record import Verb


def register(doors: Doors) -> None:
    """Answer the button Edit."""
    doors.on_action(Action.EDIT, _edit)


async def _edit(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.EDIT)
    await permitted(desk, looked_at, Verb.EDIT, clicked.who)
    await need_full_view(desk, looked_at, clicked.action.user)
    approval, index = looked_at.approval, looked_at.item.index
    view = edit.view(approval, index, key=desk.config.seal_key, team=desk.team)
    await open_view(desk, clicked, looked_at, view)
    return None
