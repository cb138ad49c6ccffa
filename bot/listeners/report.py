"""Open the form in which a notice is reported."""

from __future__ import annotations

from bot.blocks import template
from bot.desk import Calm, Desk, Said
from bot.gestures import Clicked
from bot.ids import Action, View
from bot.listeners.doors import Doors
from bot.listeners.noticed import member, seen_notice
from bot.listeners.views import opened_view
from bot.modals import report
from gateway.store.cards import ViewBinding

ALREADY = template("You reported this already; nothing more was recorded.")


def register(doors: Doors) -> None:
    """Answer the button Report."""
    doors.on_action(Action.REPORT, _report)


async def _report(desk: Desk, clicked: Clicked) -> Said | None:
    notice, _ = await seen_notice(desk, clicked, Action.REPORT)
    person = await member(desk, *clicked.who)
    if any(one.by.is_same(person) for one in notice.remarks):
        raise Calm(ALREADY)
    view = report.view(notice, key=desk.config.seal_key, team=desk.team)
    view_id = await opened_view(desk, clicked, view)
    binding = ViewBinding(
        user=person.user,
        approval=notice.id,
        index=0,
        version=0,
        action_hash="",
        purpose=View.REPORT,
    )
    await desk.service.store.cards.bind_view(desk.keys, view_id, binding)
    return None
