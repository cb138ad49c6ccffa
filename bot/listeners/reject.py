"""Reject one call, with a reason that the agent reads."""

from __future__ import annotations

from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.ids import Action, Input, View
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.router import Reply, Router
from twokey.bot.listeners.verify_click import permitted, verify_click
from twokey.bot.listeners.views import (
    decide_from_form,
    open_form,
    rejected_inputs,
    verify_submission,
)
from twokey.bot.modals import reject
from twokey.gateway.approvals.decisions import Reject
from twokey.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Reject, and its form."""
    router.on_action(Action.REJECT, _reject)
    router.on_submit(View.REJECT, _submit)


async def _reject(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.REJECT)
    await permitted(ctx, target, Verb.REJECT, clicked.who)
    await open_form(ctx, clicked, target, reject.view)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> Reply:
    target = await verify_submission(ctx, submitted, View.REJECT)
    said = reject.submitted(target.item, submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    decision = Reject(reason=said.reason)
    return await decide_from_form(ctx, target, submitted, decision, block=Input.REASON)
