"""Answer the agent instead of running one call."""

from __future__ import annotations

from twokey.bot.desk import Desk
from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.ids import Action, Input, View
from twokey.bot.listeners.doors import Doors, Reply
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


def register(doors: Doors) -> None:
    """Answer the button Respond, and its form."""
    doors.on_action(Action.RESPOND, _respond)
    doors.on_submit(View.RESPOND, _submit)


async def _respond(desk: Desk, clicked: Clicked) -> None:
    target = await verify_click(desk, clicked, Action.RESPOND)
    await permitted(desk, target, Verb.RESPOND, clicked.who)
    await open_form(desk, clicked, target, respond.view)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    target = await verify_submission(desk, submitted, View.RESPOND)
    said = respond.submitted(submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    decision = Respond(message=said.message)
    return await decide_from_form(
        desk, target, submitted, decision, block=Input.MESSAGE
    )
