"""Handle the buttons that extend an approval's deadline or acknowledge it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import LiteralString

from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.full_view import page_of
from keyturn.bot.listeners.router import Router
from keyturn.bot.listeners.verify_click import find_binding, verify_click
from keyturn.bot.listeners.views import update_view
from keyturn.bot.payload import Clicked
from keyturn.bot.text_types import template
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.errors import NotConfirmed
from keyturn.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)

_LAST = 1_000_000
_UNCONFIRMED: LiteralString = (
    "No replica of the store has confirmed this, so it may be recorded or lost. Please "
    "look at the card in a moment, and click again where it shows nothing."
)


def register(router: Router) -> None:
    """Answer the buttons More time and I'm on it."""
    router.on_action(Action.EXTEND, partial(_retime, action=Action.EXTEND))
    router.on_action(Action.TAKE, partial(_retime, action=Action.TAKE))


async def _retime(
    ctx: ListenerContext, clicked: Clicked, *, action: Action
) -> UserText | None:
    """Return a refusal as a sentence; what was done is shown by card and modal."""
    target = await verify_click(ctx, clicked, action)
    before, service = target.approval, ctx.service
    # As fresh as for a decision: more time keeps a call open, which is a power of
    # reviewers alone.
    reviewer = await ctx.reviewer_of(*clicked.who, *before.items, decides=True)
    change = service.extend if action is Action.EXTEND else service.acknowledge
    try:
        result = await change(before.id, reviewer.with_(gesture=clicked.gesture))
    except NotConfirmed:
        # Not repeated as other clicks are: each time would add more time.
        logger.warning("time.unconfirmed approval=%s", before.id)
        raise UserFacingError(template(_UNCONFIRMED)) from None
    if not isinstance(result, Change):
        logger.info("time.refused why=%s approval=%s", result.kind, before.id)
        return outcome_text(result, now_ms=target.now_ms)
    approval = result.approval
    logger.info("time.changed what=%s approval=%s", result.events[0].name, approval.id)
    view_id = clicked.action.view_id
    binding = await find_binding(ctx, view_id) if view_id else None
    if binding is None:
        return None
    loaded = Loaded(approval, target.now_ms)
    shown = replace(target, loaded=loaded, index=binding.index or 0)
    await update_view(ctx, clicked, shown, await page_of(ctx, shown, _LAST))
    return None
