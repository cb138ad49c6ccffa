"""Take note when the app is uninstalled or its token is revoked."""

from __future__ import annotations

from typing import Final

from twokey.bot.desk import Desk
from twokey.bot.listeners.doors import Doors
from twokey.bot.payload import Json

TOKENS_REVOKED: Final = "tokens_revoked"
APP_UNINSTALLED: Final = "app_uninstalled"


def register(doors: Doors) -> None:
    """Answer both events; the bot stays up and says in ``/readyz`` what is wrong."""
    doors.on_event(TOKENS_REVOKED, _revoked)
    doors.on_event(APP_UNINSTALLED, _uninstalled)


async def _uninstalled(desk: Desk, body: Json) -> None:
    _lost(desk, body, APP_UNINSTALLED)


async def _revoked(desk: Desk, body: Json) -> None:
    _lost(desk, body, TOKENS_REVOKED)


def _lost(desk: Desk, body: Json, event: str) -> None:
    # The event names people, not tokens: whether ours is among them, Slack is asked.
    if body.get("team_id") == desk.team:
        desk.tasks.later(desk.token.lost(event), name="token")
