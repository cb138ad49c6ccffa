"""Approve every pending call of a batch at once."""

from __future__ import annotations

from twokey.bot.cards.batch_footer import decided_alone
from twokey.bot.ids import Action
from twokey.bot.interactions import Clicked
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.batch_decision import batch_reply, decide_batch
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import verify_click
from twokey.bot.text_types import template
from twokey.gateway.approvals.decisions import Approve


def register(router: Router) -> None:
    """Answer the button that approves all of a batch."""
    router.on_action(Action.APPROVE_ALL, _approve_all)


async def _approve_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ALL)
    approval = target.approval
    waiting = [item for item in approval.items if item.is_pending]
    # What only the policy of now escalates is left out by `decide_batch`, and named.
    if decided_alone(approval):
        raise UserFacingError(
            template(
                "Nothing was recorded: a call that is escalated, needs a reason, or is "
                "not shown whole here, needs a decision of its own."
            )
        )
    outcome = await decide_batch(
        ctx, target, {item.index: Approve() for item in waiting}, clicked
    )
    return batch_reply(outcome, now_ms=target.now_ms)
