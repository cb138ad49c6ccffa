"""Reconcile a call in doubt: a person says whether it took effect."""

from __future__ import annotations

from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, UserText
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    decide,
    outcome_reply,
    require_reconciler,
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
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.protocol.verbs import Finding

_FINDINGS = {
    Action.RECONCILE_EXECUTED: Finding.EXECUTED,
    Action.RECONCILE_RERUN: Finding.RERUN,
    Action.RECONCILE_SKIP: Finding.SKIP,
}


def register(router: Router) -> None:
    """Answer the buttons of a call in doubt: one click, or a form with a note."""
    for action in _FINDINGS:
        router.on_action(action, _reconcile)
    router.on_action(Action.RECONCILE_NOTE, _with_note)
    router.on_submit(View.RECONCILE, _submit)


async def _reconcile(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    # The seal is verified for exactly this action: a button for "leave it" cannot be
    # sent as "run it again".
    action = Action(clicked.action.action_id)
    target = await verify_click(ctx, clicked, action)
    decision = Reconcile(finding=_FINDINGS[action])
    outcome = await decide(ctx, target, decision, clicked)
    if clicked.action.view_id:
        # A modal is not drawn again by the event, as the card is.
        return outcome_text(outcome, now_ms=target.now_ms)
    return outcome_reply(outcome, now_ms=target.now_ms)


async def _with_note(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.RECONCILE_NOTE)
    await require_reconciler(ctx, target, clicked.who)
    await open_form(ctx, clicked, target, call_form.reconcile_form)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.RECONCILE)
    decision = call_form.submitted_finding(submitted.view.values)
    if isinstance(decision, dict):
        return rejected_inputs(decision)
    return await decide_from_form(ctx, target, submitted, decision, block=Input.NOTE)
