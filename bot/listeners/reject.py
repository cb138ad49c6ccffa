"""Reject one call, with a reason that the agent reads."""

from __future__ import annotations

from twokey.bot.ids import Action, Input, View
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.text_form import TextForm
from twokey.bot.modals import reject
from twokey.gateway.approvals.decisions import Reject
from twokey.gateway.protocol.verbs import Verb


def register(router: Router) -> None:
    """Answer the button Reject, and its form."""
    TextForm(
        Action.REJECT,
        View.REJECT,
        Verb.REJECT,
        reject.view,
        reject.submitted,
        decision=lambda text: Reject(reason=text),
        block=Input.REASON,
    ).register(router)
