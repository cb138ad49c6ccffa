"""Answer the questions of an agent from their card, or skip them."""

from __future__ import annotations

from keyturn.bot.ids import Action, View
from keyturn.bot.listener_context import ListenerContext, UserText
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    decide,
    outcome_reply,
    require_permission,
    verify_click,
)
from keyturn.bot.listeners.views import (
    form_reply,
    open_form,
    rejected_inputs,
    verify_submission,
)
from keyturn.bot.modals import answer
from keyturn.bot.payload import Clicked, Submitted
from keyturn.gateway.approvals.decisions import Invalid, Reject, Respond
from keyturn.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the buttons Answer and Skip, and the form of the answers."""
    router.on_action(Action.ANSWER, _open)
    router.on_action(Action.SKIP, _skip)
    router.on_submit(View.ANSWER, _submit)


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.ANSWER)
    await require_permission(ctx, target, Verb.RESPOND, clicked.who)
    await open_form(ctx, clicked, target, answer.view)


async def _skip(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.SKIP)
    outcome = await decide(ctx, target, Reject(), clicked)
    return outcome_reply(outcome, now_ms=target.now_ms)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.ANSWER)
    questions, values = target.item.questions, submitted.view.values
    answers, errors = answer.submitted(questions, values)
    if errors:
        return rejected_inputs(errors)
    outcome = await decide(ctx, target, Respond(answers=answers), submitted)
    if isinstance(outcome, Invalid):
        return rejected_inputs(answer.errors_by_block(outcome.errors))
    return form_reply(outcome, now_ms=target.now_ms)
