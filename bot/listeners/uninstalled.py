"""Take note when the app is uninstalled or its token is revoked."""

from __future__ import annotations

from typing import Final

from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.router import Router
from twokey.bot.payload import Json

TOKENS_REVOKED: Final = "tokens_revoked"
APP_UNINSTALLED: Final = "app_uninstalled"


def register(router: Router) -> None:
    """Answer both events; the bot stays up and says in ``/readyz`` what is wrong."""
    router.on_event(TOKENS_REVOKED, _revoked)
    router.on_event(APP_UNINSTALLED, _uninstalled)


async def _uninstalled(ctx: ListenerContext, body: Json) -> None:
    _lost(ctx, body, APP_UNINSTALLED)


async def _revoked(ctx: ListenerContext, body: Json) -> None:
    _lost(ctx, body, TOKENS_REVOKED)


def _lost(ctx: ListenerContext, body: Json, event: str) -> None:
    # The event names people, not tokens: whether ours is among them, Slack is asked.
    if body.get("team_id") == ctx.team:
        ctx.tasks.later(ctx.token.lost(event), name="token")
