"""Slack listeners, one file per idea; `register` is the public name of each."""

from collections.abc import Callable
from functools import partial
from typing import Final

from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.listeners import (
    batch,
    card_actions,
    command,
    deciding,
    full_view,
    home_tab,
    messages,
    quality_checks,
    reading,
    review,
    standing,
)
from keyturn.bot.listeners.router import Router
from keyturn.bot.payload import Json


def _register_uninstalled(router: Router) -> None:
    # The bot stays up, and ``/readyz`` shows the problem.
    for event in ("tokens_revoked", "app_uninstalled"):
        router.on_event(event, partial(_token_lost, event=event))


async def _token_lost(ctx: ListenerContext, body: Json, *, event: str) -> None:
    # The event names people, not tokens, so the bot asks Slack about its own.
    if body.get("team_id") == ctx.team:
        ctx.tasks.later(ctx.token.lost(event), name="token")


LISTENERS: Final[tuple[Callable[[Router], None], ...]] = (
    batch.register,
    card_actions.register,
    command.register,
    deciding.register,
    full_view.register,
    home_tab.register,
    messages.register,
    quality_checks.register,
    reading.register,
    review.register,
    standing.register,
    _register_uninstalled,
    Router.on_unknown,
)
"""In order of registration; the last one handles unknown actions and forms."""
