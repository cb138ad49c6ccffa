"""Take a decision from a form: its button opens it, its submission decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.ids import Action, Input, View
from twokey.bot.listener_context import ListenerContext
from twokey.bot.listeners.router import Reply, Router
from twokey.bot.listeners.verify_click import permitted, verify_click
from twokey.bot.listeners.views import (
    Form,
    decide_from_form,
    open_form,
    rejected_inputs,
    verify_submission,
)
from twokey.bot.modals.call_form import SubmittedText
from twokey.bot.modals.form import State
from twokey.gateway.approvals.decisions import Decision
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.verbs import Verb


@dataclass(frozen=True, slots=True)
class TextForm:
    """A decision that consists of a text.

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

    def register(self, router: Router) -> None:
        """Answer the button and the form."""
        router.on_action(self.action, self._open)
        router.on_submit(self.view, self._submit)

    async def _open(self, ctx: ListenerContext, clicked: Clicked) -> None:
        target = await verify_click(ctx, clicked, self.action)
        await permitted(ctx, target, self.verb, clicked.who)
        await open_form(ctx, clicked, target, self.form)

    async def _submit(self, ctx: ListenerContext, submitted: Submitted) -> Reply:
        target = await verify_submission(ctx, submitted, self.view)
        said = self.read(target.item, submitted.view.values)
        if said.errors:
            return rejected_inputs(said.errors)
        decision = self.decision(said.text)
        return await decide_from_form(
            ctx, target, submitted, decision, block=self.block
        )
