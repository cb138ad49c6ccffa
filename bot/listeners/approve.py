"""Approve one call from its card: at once, or in a modal that asks for a reason."""

from __future__ import annotations

from twokey.bot.ids import Action, Input, View
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import ListenerContext, UserText
from twokey.bot.listeners.approve_as_shown import approve_as_shown
from twokey.bot.listeners.full_view import require_full_view
from twokey.bot.listeners.router import AckBody, Router, Said
from twokey.bot.listeners.verify_click import (
    decide,
    is_reason_invalid,
    outcome_reply,
    require_permission,
    verify_click,
)
from twokey.bot.listeners.views import (
    decide_from_form,
    open_form,
    rejected_inputs,
    verify_submission,
)
from twokey.bot.modals import approve
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Approve, and the form with the reason."""
    router.on_action(Action.APPROVE, _approve, at_once=_approve_at_once)
    router.on_submit(View.APPROVE, _submit)


async def _approve(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    at_once = await approve_as_shown(ctx, clicked)
    if at_once is not None:
        return at_once.text
    target = await verify_click(ctx, clicked, Action.APPROVE)
    if Verb.APPROVE not in target.item.requires_reason:
        outcome = await decide(ctx, target, Approve(), clicked)
        if not is_reason_invalid(outcome):
            return outcome_reply(outcome, now_ms=target.now_ms)
    # Also where only the policy of now asks for a reason.
    await require_permission(ctx, target, Verb.APPROVE, clicked.who)
    await open_form(ctx, clicked, target, approve.view)
    return None


async def _approve_at_once(ctx: ListenerContext, clicked: Clicked) -> Said | None:
    return await approve_as_shown(ctx, clicked, is_seen=False)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.APPROVE)
    # The seal of a form proves that it was opened, not that the pages were; the Approve
    # button of a short card leads here, too.
    await require_full_view(ctx, target, submitted.view.user)
    inputs = approve.submitted(submitted.view.values)
    if inputs.errors:
        return rejected_inputs(inputs.errors)
    decision = Approve(reason=inputs.text)
    return await decide_from_form(ctx, target, submitted, decision, block=Input.REASON)
