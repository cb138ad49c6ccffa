"""Reject one call, or respond to the agent instead, with a text from a modal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import require_permission, verify_click
from keyturn.bot.listeners.views import (
    Form,
    decide_from_form,
    open_form,
    rejected_inputs,
    verify_submission,
)
from keyturn.bot.modals import call_form, reject
from keyturn.bot.modals.call_form import SubmittedText
from keyturn.bot.modals.form import State
from keyturn.bot.payload import Clicked, Submitted
from keyturn.gateway.approvals.decisions import Decision, Reject, Respond
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the buttons Reject and Respond, and their forms."""
    for form in (_REJECT, _RESPOND):
        router.on_action(form.action, form.open)
        router.on_submit(form.view, form.submit)


@dataclass(frozen=True, slots=True)
class _TextForm:
    """A button that opens a form, and what is decided by the text in it.

    Attributes:
        action: the button that opens the form.
        view: the form's purpose.
        verb: what it decides.
        form: makes the modal.
        read: reads what was submitted.
        decision: what that text decides.
        block: the input under which to say why the decision is not acceptable.
    """

    action: Action
    view: View
    verb: Verb
    form: Form
    read: Callable[[Item, State], SubmittedText]
    decision: Callable[[str], Decision]
    block: Input

    async def open(self, ctx: ListenerContext, clicked: Clicked) -> None:
        """Open the form for a person who may decide."""
        target = await verify_click(ctx, clicked, self.action)
        await require_permission(ctx, target, self.verb, clicked.who)
        await open_form(ctx, clicked, target, self.form)

    async def submit(self, ctx: ListenerContext, submitted: Submitted) -> AckBody:
        """Decide by the text of the form."""
        target = await verify_submission(ctx, submitted, self.view)
        inputs = self.read(target.item, submitted.view.values)
        if inputs.errors:
            return rejected_inputs(inputs.errors)
        decision = self.decision(inputs.text)
        return await decide_from_form(
            ctx, target, submitted, decision, block=self.block
        )


_REJECT = _TextForm(
    Action.REJECT,
    View.REJECT,
    Verb.REJECT,
    reject.view,
    reject.submitted,
    decision=lambda text: Reject(reason=text),
    block=Input.REASON,
)
_RESPOND = _TextForm(
    Action.RESPOND,
    View.RESPOND,
    Verb.RESPOND,
    call_form.response_form,
    lambda _, state: call_form.submitted_response(state),
    decision=lambda text: Respond(message=text),
    block=Input.MESSAGE,
)
