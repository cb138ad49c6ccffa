"""Tell the others that somebody looks at an approval."""

from __future__ import annotations

from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action
from twokey.bot.listener_context import ListenerContext, Said
from twokey.bot.listeners.retiming import retimed
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import verify_click


def register(router: Router) -> None:
    """Answer the button I'm on it."""
    router.on_action(Action.TAKE, _take)


async def _take(ctx: ListenerContext, clicked: Clicked) -> Said | None:
    target = await verify_click(ctx, clicked, Action.TAKE)
    approval = target.approval
    reviewer = await ctx.reviewer_of(*clicked.who, *approval.items, decides=True)
    result = await ctx.service.times.take(
        approval.id, reviewer.with_(gesture=clicked.gesture)
    )
    return await retimed(ctx, clicked, target, result)
