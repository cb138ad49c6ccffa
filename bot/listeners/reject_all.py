"""Reject every waiting call of a batch, with one reason from a modal."""

from __future__ import annotations

from dataclasses import replace

from twokey.bot.ids import Action, View
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.batch_decision import batch_form_reply, decide_batch
from twokey.bot.listeners.router import AckBody, Router
from twokey.bot.listeners.verify_click import (
    of_member,
    require_permission,
    verify_click,
)
from twokey.bot.listeners.views import open_view, rejected_inputs, verify_submission
from twokey.bot.modals import reject
from twokey.gateway.approvals.decisions import Reject
from twokey.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Reject all, and its form."""
    router.on_action(Action.REJECT_ALL, _open)
    router.on_submit(View.REJECT_ALL, _submit)


async def _open(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.REJECT_ALL)
    # The seal holds which calls wait, so there is one; they need the same people.
    first = next(item for item in target.approval.items if item.is_pending)
    one = await of_member(ctx, replace(target, index=first.index))
    await require_permission(ctx, one, Verb.REJECT, clicked.who)
    view = reject.view_of_all(ctx.frame(target.approval, target.now_ms))
    await open_view(ctx, clicked, target, view)


async def _submit(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.REJECT_ALL)
    waiting = [item for item in target.approval.items if item.is_pending]
    said = reject.submitted_reason(
        submitted.view.values, needed=reject.needs_reason(waiting)
    )
    if said.errors:
        return rejected_inputs(said.errors)
    rejection = Reject(reason=said.text)
    outcome = await decide_batch(
        ctx, target, {item.index: rejection for item in waiting}, submitted
    )
    return batch_form_reply(outcome, now_ms=target.now_ms)
