"""Handle *Allow similar*: approve the call, and propose a standing approval from it.

The call at hand is approved first, by its own rules. Then the standing approval is
proposed, and gets the same person's vote: two decisions, each atomic by itself.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import notice
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.full_view import require_full_view
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    Target,
    decide,
    require_permission,
    verify_click,
)
from keyturn.bot.listeners.views import (
    form_reply,
    open_view,
    rejected_inputs,
    verify_submission,
)
from keyturn.bot.modals import allow_similar
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text_types import label, template
from keyturn.gateway.approvals.decisions import Approve, Decided, Voted
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.standing import Chosen, Offer
from keyturn.gateway.protocol.verbs import Verb
from keyturn.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)

_CHANGED: LiteralString = (
    "The policy changed while this form was open, so it may allow something else than "
    "you saw. Nothing was recorded; please open it again from the card."
)


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
    await open_view(ctx, clicked, target, view, staged=_limits(offer))


def _offered(ctx: ListenerContext, target: Target) -> Offer:
    offer = ctx.service.standing.offer(target.approval, target.item.index)
    if isinstance(offer, str):
        raise UserFacingError(label(offer))
    return offer


def _limits(offer: Offer) -> str:
    return offer.rule.model_dump_json()


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.ALLOW_SIMILAR)
    await require_full_view(ctx, target, submitted.view.user)
    offer = _offered(ctx, target)
    # What may differ and what is added up come from the policy of now: it has to be
    # what the form showed, for the vote below is given without another look.
    if target.staged != _limits(offer):
        raise UserFacingError(template(_CHANGED))
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
    recorded = _recorded(outcome)
    try:
        return await _propose(ctx, target, inputs.chosen, approve, submitted, recorded)
    # From here on "nothing was recorded" would be untrue.
    except StoreUnavailable as error:
        logger.warning("standing.not_known id=%s why=%s", target.approval.id, error)
        told = "Whether similar calls are allowed is not known; see the channel."
        return _notice(f"{recorded} {told}")


def _recorded(outcome: Decided | Voted) -> str:
    """Return what is recorded of the call itself, whatever comes of similar ones."""
    if isinstance(outcome, Voted):
        return "Your approval of this call is recorded; others are needed, too."
    return "This call is approved."


def _notice(told: str) -> AckBody:
    view = notice(label("Allow similar calls"), label(told))
    return {"response_action": "update", "view": view}


async def _propose(
    ctx: ListenerContext,
    target: Target,
    chosen: Chosen,
    approve: Approve,
    submitted: Submitted,
    recorded: str,
) -> AckBody:
    by = await ctx.reviewer_of(*submitted.who, target.item, decides=True)
    opened = await ctx.service.standing.propose(
        target.approval, target.item.index, chosen, by
    )
    if isinstance(opened, str):
        return _notice(f"{recorded} Nothing similar is allowed: {opened}")
    logger.info("standing.proposed approval=%s user=%s", opened.id, by.user)
    loaded = Loaded(opened, opened.created_at_ms)
    proposal = replace(target, loaded=loaded, index=0)
    outcome = await decide(ctx, proposal, approve, submitted)
    return form_reply(outcome, now_ms=proposal.now_ms)
