"""Handle ``app_uninstalled`` and ``tokens_revoked``: stop using the token."""

from __future__ import annotations

from functools import partial

from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.listeners.router import Router
from keyturn.bot.payload import Json


def register(router: Router) -> None:
    """Answer both events; the bot stays up and says in ``/readyz`` what is wrong."""
    for event in ("tokens_revoked", "app_uninstalled"):
        router.on_event(event, partial(_lost, event=event))


async def _lost(ctx: ListenerContext, body: Json, *, event: str) -> None:
    # The event names people, not tokens: whether ours is among them, Slack is asked.
    if body.get("team_id") == ctx.team:
        ctx.tasks.later(ctx.token.lost(event), name="token")
