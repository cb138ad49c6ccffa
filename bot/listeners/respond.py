"""Answer the agent instead of running one call."""

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
from twokey.bot.modals import respond
from twokey.gateway.approvals.decisions import Respond
from twokey.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Respond, and its form."""
    router.on_action(Action.RESPOND, _respond)
    router.on_submit(View.RESPOND, _submit)


async def _respond(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.RESPOND)
    await permitted(ctx, target, Verb.RESPOND, clicked.who)
    await open_form(ctx, clicked, target, respond.view)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> Reply:
    target = await verify_submission(ctx, submitted, View.RESPOND)
    said = respond.submitted(submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    decision = Respond(message=said.message)
    return await decide_from_form(ctx, target, submitted, decision, block=Input.MESSAGE)
