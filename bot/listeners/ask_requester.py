"""Ask the requester about a call that waits: open the form, record the question.

The publisher mentions the requester under the card; `thread_reply` takes the reply.
"""

from __future__ import annotations

import asyncio
import logging

from keyturn.bot.cards.inquiries import requester_ref
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import Target, Who, verify_click
from keyturn.bot.listeners.views import (
    form_reply,
    open_view,
    rejected_inputs,
    verify_submission,
)
from keyturn.bot.modals import call_form
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text_types import template
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deadline_changes import refusal
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.inquiry import Inquiry
from keyturn.gateway.protocol.records import Person

logger = logging.getLogger(__name__)

_NOBODY = template(
    "Nobody is known in Slack who asked the agent for this, so there is nobody to ask."
)
_NO_READER = {
    AccountKind.DEACTIVATED: template(
        "The account of the person who asked the agent is deactivated, so nobody would "
        "read your question. Nothing was recorded."
    ),
    AccountKind.BOT: template(
        "A bot or workflow asked the agent for this, so nobody would read your "
        "question. Nothing was recorded."
    ),
}
_NO_CARD = template(
    "The requester is asked under the card, which is not posted yet. Nothing was "
    "recorded; please try again once it is."
)


def register(router: Router) -> None:
    """Answer Ask the requester, and its form."""
    router.on_action(Action.ASK_REQUESTER, _open)
    router.on_submit(View.ASK_REQUESTER, _submit)


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.ASK_REQUESTER)
    approval = target.approval
    requester, reviewer = await asyncio.gather(
        _requester(ctx, target), _reviewer(ctx, target, clicked.who)
    )
    # Asked again when the form is sent; here it spares typing.
    refused = refusal(approval, reviewer, target.now_ms, call=target.index)
    if refused is not None:
        raise UserFacingError(outcome_text(refused, now_ms=target.now_ms))
    if await ctx.service.store.cards.place(target.keys, approval.id) is None:
        raise UserFacingError(_NO_CARD)
    frame = ctx.frame(approval, target.now_ms)
    view = call_form.question_form(frame, target.index, requester)
    await open_view(ctx, clicked, target, view)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.ASK_REQUESTER)
    said = call_form.submitted_question(submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    reviewer = await _reviewer(ctx, target, submitted.who)
    approval = target.approval
    result = await ctx.service.ask_requester(
        approval.id,
        target.index if approval.is_batch else None,
        reviewer.with_(gesture=submitted.gesture),
        said.text,
    )
    is_kept = isinstance(result, Change | Inquiry)
    logger.info("requester.asked kept=%s approval=%s", is_kept, approval.id)
    if isinstance(result, Change | Inquiry):
        return {"response_action": "clear"}
    return form_reply(result, now_ms=target.now_ms)


async def _reviewer(ctx: ListenerContext, target: Target, who: Who) -> Reviewer:
    items = target.approval.items if target.index is None else (target.item,)
    return await ctx.reviewer_of(*who, *items)


async def _requester(ctx: ListenerContext, target: Target) -> Person:
    """Return whom to ask; raises `UserFacingError` when nobody would read it."""
    requester = target.approval.requester
    if requester is None or requester_ref(target.approval) is None:
        raise UserFacingError(_NOBODY)
    # Where Slack does not say who it is, they are asked: a question does no harm.
    found = await ctx.reviewers.resolve(requester.user, user_team=requester.team)
    if (refused := _NO_READER.get(found.account)) is not None:
        raise UserFacingError(refused)
    return requester
