"""Handle the button on a notification that freezes its tool (kill switch)."""

from __future__ import annotations

import logging

from twokey.bot.ids import Action
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import verify_click
from twokey.bot.text_types import label, template
from twokey.gateway.approvals.decisions import Forbidden
from twokey.gateway.errors import FreezeIncomplete
from twokey.gateway.store.freezes import FreezeScope, ScopeKind

logger = logging.getLogger(__name__)


def register(router: Router) -> None:
    """Answer the button Freeze tool."""
    router.on_action(Action.FREEZE_TOOL, _freeze)


async def _freeze(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.FREEZE_TOOL)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=target.item.tool)
    reviewer = await ctx.resolve_freezer(*clicked.who, scope)
    approval_id = target.approval.id
    await ctx.ensure_first(clicked.digest, clicked.token)
    reason = f"frozen from notification {approval_id}"
    try:
        result = await ctx.service.reviewer_freezes.freeze(
            scope, reviewer.with_(gesture=clicked.gesture), reason
        )
    except FreezeIncomplete as error:
        raise UserFacingError(label(str(error))) from None
    if isinstance(result, Forbidden):
        logger.info("freeze.refused user=%s approval=%s", reviewer.user, approval_id)
        raise UserFacingError(label(result.reason))
    # The tool's name is the agent's text, and Slack reads this as markup.
    if not result:
        return template("This tool is frozen already; nothing changed.")
    return template(
        "The tool is frozen: even approved calls do not start. A message in the "
        "channel says how to end the freeze."
    )
