"""Handle *Allow similar*: approve the call, and propose a standing approval from it.

The call at hand is approved first, by its own rules. Then the standing approval is
proposed, and gets the same person's vote: two decisions, each atomic by itself.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from twokey.bot.blocks import notice
from twokey.bot.ids import Action, Input, View
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import ListenerContext, UserFacingError
from twokey.bot.listeners.full_view import require_full_view
from twokey.bot.listeners.router import AckBody, Router
from twokey.bot.listeners.verify_click import (
    Target,
    decide,
    require_permission,
    verify_click,
)
from twokey.bot.listeners.views import (
    form_reply,
    open_view,
    rejected_inputs,
    verify_submission,
)
from twokey.bot.modals import allow_similar
from twokey.bot.text_types import label
from twokey.gateway.approvals.decisions import Approve, Decided, Voted
from twokey.gateway.policy.standing import Chosen, Offer
from twokey.gateway.protocol.verbs import Verb

logger = logging.getLogger(__name__)


def register(router: Router) -> None:
    """Answer Allow similar, and its form."""
    router.on_action(Action.ALLOW_SIMILAR, _open)
    router.on_submit(View.ALLOW_SIMILAR, _submit)


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.ALLOW_SIMILAR)
    await require_permission(ctx, target, Verb.APPROVE, clicked.who)
    offer = _offered(ctx, target)
    frame = ctx.frame(target.approval, target.now_ms)
    view = allow_similar.view(frame, target.item.index, offer)
    await open_view(ctx, clicked, target, view)


def _offered(ctx: ListenerContext, target: Target) -> Offer:
    offer = ctx.service.standing.offer(target.approval, target.item.index)
    if isinstance(offer, str):
        raise UserFacingError(label(offer))
    return offer


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.ALLOW_SIMILAR)
    await require_full_view(ctx, target, submitted.view.user)
    offer = _offered(ctx, target)
    inputs = allow_similar.submitted(target.item, offer, submitted.view.values)
    if inputs.chosen is None:
        return rejected_inputs(inputs.errors)
    index, standing = target.item.index, ctx.service.standing
    # Before anything is recorded: what the policy does not let them allow.
    bounds = standing.bounds(target.approval, index, inputs.chosen, target.now_ms)
    if isinstance(bounds, str):
        return rejected_inputs({Input.USES.value: bounds})
    approve = Approve(reason=inputs.reason)
    outcome = await decide(ctx, target, approve, submitted)
    if not isinstance(outcome, Decided | Voted):
        return form_reply(outcome, now_ms=target.now_ms)
    return await _propose(ctx, target, inputs.chosen, approve, submitted)


async def _propose(
    ctx: ListenerContext,
    target: Target,
    chosen: Chosen,
    approve: Approve,
    submitted: Submitted,
) -> AckBody:
    by = await ctx.reviewer_of(*submitted.who, target.item, decides=True)
    opened = await ctx.service.standing.propose(
        target.approval, target.item.index, chosen, by
    )
    if isinstance(opened, str):
        told = f"This call is approved. Nothing similar is allowed: {opened}"
        view = notice(label("Approved"), label(told))
        return {"response_action": "update", "view": view}
    logger.info("standing.proposed approval=%s user=%s", opened.id, by.user)
    proposal = replace(target, approval=opened, index=0, now_ms=opened.created_at_ms)
    outcome = await decide(ctx, proposal, approve, submitted)
    return form_reply(outcome, now_ms=proposal.now_ms)
