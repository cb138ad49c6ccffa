"""Slack listeners, one file per idea; importing a file registers its listeners."""

from __future__ import annotations

from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.listeners import (
    card_actions,
    choosing,
    command,
    deciding,
    home_tab,
    messages,
    reading,
    standing,
)
from keyturn.bot.listeners.router import Bolt, Router, on_event
from keyturn.bot.payload import Json
from keyturn.bot.web import text_at

__all__ = [
    "card_actions", "choosing", "command", "deciding", "home_tab", "listen", "messages",
    "reading", "standing",
]  # fmt: skip


def listen(bolt: Bolt, ctx: ListenerContext) -> None:
    """Answer Slack's requests."""
    Router(ctx, on_command=command.answer).listen(bolt)


# The bot stays up, and ``/readyz`` shows the problem.
@on_event("tokens_revoked", "app_uninstalled")
async def _token_lost(ctx: ListenerContext, body: Json) -> None:
    # The event names people, not tokens, so the bot asks Slack about its own.
    if body.get("team_id") == ctx.team:
        lost = ctx.token.lost(text_at(body, "event", "type"))
        ctx.tasks.later(lost, name="token")
