"""Answer the agent instead of running one call."""

from __future__ import annotations

from twokey.bot.ids import Action, Input, View
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.text_form import TextForm
from twokey.bot.modals import respond
from twokey.gateway.approvals.decisions import Respond
from twokey.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Respond, and its form."""
    TextForm(
        Action.RESPOND,
        View.RESPOND,
        Verb.RESPOND,
        respond.view,
        lambda _, state: respond.submitted(state),
        decision=lambda text: Respond(message=text),
        block=Input.MESSAGE,
    ).register(router)
