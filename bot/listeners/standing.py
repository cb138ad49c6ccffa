"""Revoke a standing approval from its card, and list the calls that it covered."""

from __future__ import annotations

import logging

from twokey.bot.ids import Action
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import verify_click
from twokey.bot.listeners.views import open_modal
from twokey.bot.modals import uses
from twokey.bot.text_types import label, template
from twokey.gateway.approvals.decisions import Forbidden
from twokey.gateway.approvals.record import approval_of

logger = logging.getLogger(__name__)

_OVER = template("This has ended already; nothing changed.")


def register(router: Router) -> None:
    """Answer the buttons Revoke and Uses."""
    router.on_action(Action.REVOKE, _revoke)
    router.on_action(Action.USES, _list)


async def _revoke(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.REVOKE)
    # Stopping takes less than giving: what Slack said within a minute is good enough.
    by = await ctx.reviewer_of(*clicked.who, target.item)
    result = await ctx.service.standing.revoke(
        target.approval.id, by.with_(gesture=clicked.gesture)
    )
    if isinstance(result, Forbidden):
        logger.info("standing.refused user=%s approval=%s", by.user, target.approval.id)
        raise UserFacingError(label(result.reason))
    return None if result else _OVER


async def _list(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.USES)
    ids = [use.item for use in uses.newest(target.approval)]
    approvals = dict.fromkeys(approval_of(one)[0] for one in ids)
    found = await ctx.service.queue.read_each(approvals)
    items = {item.id: item for one in found for item in one.approval.items}
    await open_modal(ctx, clicked, uses.view(target.approval, items))
