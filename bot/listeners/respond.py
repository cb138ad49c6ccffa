"""Open the form in which the agent is answered instead of its call being run."""

from __future__ import annotations

from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action
from bot.listeners.doors import Doors
from bot.listeners.seeing import permitted, seen
from bot.listeners.views import open_view
from bot.modals import respond
from gateway.approvals.record import Verb


def register(doors: Doors) -> None:
    """Answer the button Respond."""
    doors.on_action(Action.RESPOND, _respond)


async def _respond(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.RESPOND)
    await permitted(desk, looked_at, Verb.RESPOND, clicked.who)
    approval, index = looked_at.approval, looked_at.item.index
    view = respond.view(approval, index, key=desk.config.seal_key, team=desk.team)
    await open_view(desk, clicked, looked_at, view)
    return None
