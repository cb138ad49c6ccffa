"""Show everything about a call, page by page."""

from __future__ import annotations

from bot.blocks import Block
from bot.desk import Desk, Said
from bot.gestures import Clicked
from bot.ids import Action, page
from bot.listeners.doors import Doors
from bot.listeners.full_view import saw_page
from bot.listeners.seeing import Seen, opened, proven_place, read_seal, seen
from bot.listeners.views import open_view, turn_view
from bot.modals import details

_MAX_PAGES = 200


def register(doors: Doors) -> None:
    """Answer View all, and the two buttons that turn a page."""
    doors.on_action(Action.VIEW_ALL, _view_all)
    doors.on_action(Action.PAGE_BACK, _turn)
    doors.on_action(Action.PAGE_NEXT, _turn)


async def _view_all(desk: Desk, clicked: Clicked) -> Said | None:
    looked_at = await seen(desk, clicked, Action.VIEW_ALL)
    view = _page(desk, looked_at, 1)
    if clicked.action.view_id and not clicked.is_home:
        await turn_view(desk, clicked, looked_at, view)
    else:
        await open_view(desk, clicked, looked_at, view)
    await saw_page(desk, looked_at, clicked.action.user, 1)
    return None


async def _turn(desk: Desk, clicked: Clicked) -> Said | None:
    # A page's number is only in the MAC of its button: look for the one that fits.
    pages = {page(number): number for number in range(1, _MAX_PAGES + 1)}
    looked_at = await opened(desk, read_seal(clicked.action.value), *pages)
    await proven_place(desk, clicked, looked_at)
    number = pages[looked_at.purpose]
    await turn_view(desk, clicked, looked_at, _page(desk, looked_at, number))
    await saw_page(desk, looked_at, clicked.action.user, number)
    return None


def _page(desk: Desk, looked_at: Seen, number: int) -> Block:
    return details.view(
        looked_at.approval,
        looked_at.item.index,
        number,
        key=desk.config.seal_key,
        team=desk.team,
        now_ms=looked_at.now_ms,
    )
