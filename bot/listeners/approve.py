"""Approve one call from its card: at once, or in a modal that asks for a reason."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserText
from keyturn.bot.listeners.full_view import require_full_view
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    decide,
    is_reason_invalid,
    outcome_reply,
    require_permission,
    verify_click,
)
from keyturn.bot.listeners.views import (
    decide_from_form,
    open_form,
    rejected_inputs,
    verify_submission,
)
from keyturn.bot.modals import call_form
from keyturn.bot.payload import Clicked, Submitted
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Approve, and the form with the reason."""
    router.on_action(Action.APPROVE, _approve)
    router.on_submit(View.APPROVE, _submit)


async def _approve(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE)
    if Verb.APPROVE not in target.item.requires_reason:
        outcome = await decide(ctx, target, Approve(), clicked)
        if not is_reason_invalid(outcome):
            return outcome_reply(outcome, now_ms=target.now_ms)
    # Also where only the policy of now asks for a reason.
    await require_permission(ctx, target, Verb.APPROVE, clicked.who)
    await open_form(ctx, clicked, target, call_form.approval_form)
    return None


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.APPROVE)
    # The seal of a form proves that it was opened, not that the pages were; the Approve
    # button of a short card leads here, too.
    await require_full_view(ctx, target, submitted.view.user)
    inputs = call_form.submitted_approval(submitted.view.values)
    if inputs.errors:
        return rejected_inputs(inputs.errors)
    decision = Approve(reason=inputs.text)
    return await decide_from_form(ctx, target, submitted, decision, block=Input.REASON)
