"""Give an approval more time."""

from __future__ import annotations

from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action
from twokey.bot.listener_context import ListenerContext, Said
from twokey.bot.listeners.retiming import retimed
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import verify_click


def register(router: Router) -> None:
    """Answer the button More time."""
    router.on_action(Action.EXTEND, _extend)


async def _extend(ctx: ListenerContext, clicked: Clicked) -> Said | None:
    target = await verify_click(ctx, clicked, Action.EXTEND)
    approval = target.approval
    reviewer = await ctx.reviewer_of(*clicked.who, *approval.items, decides=True)
    result = await ctx.service.times.extend(
        approval.id, reviewer.with_(gesture=clicked.gesture)
    )
    return await retimed(ctx, clicked, target, result)
