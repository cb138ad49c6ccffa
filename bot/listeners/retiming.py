"""Show what came of a click about the time of an approval, where it was made."""

from __future__ import annotations

import logging
from dataclasses import replace

from twokey.bot.cards.outcome import explained
from twokey.bot.gestures import Clicked
from twokey.bot.listener_context import ListenerContext, Said
from twokey.bot.listeners.verify_click import Target, bound
from twokey.bot.listeners.views import turn_view
from twokey.bot.modals import details
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Refusal

logger = logging.getLogger(__name__)

_LAST = 1_000_000


async def retimed(
    ctx: ListenerContext, clicked: Clicked, target: Target, result: Change | Refusal
) -> Said | None:
    """Return a refusal as a sentence; what was done is shown by card and modal."""
    before = target.approval
    if not isinstance(result, Change):
        logger.info("time.refused why=%s approval=%s", result.kind, before.id)
        return explained(result, now_ms=target.now_ms)
    approval = result.approval
    logger.info("time.changed what=%s approval=%s", result.events[0].name, approval.id)
    view_id = clicked.action.view_id
    binding = await bound(ctx, view_id) if view_id else None
    if binding is None:
        return None
    view = details.view(
        approval,
        binding.index,
        _LAST,
        key=ctx.config.seal_key,
        team=ctx.team,
        now_ms=target.now_ms,
    )
    shown = replace(target, approval=approval, index=binding.index)
    await turn_view(ctx, clicked, shown, view)
    return None
