"""Answer the agent instead of running one call."""

from __future__ import annotations

from bot.desk import Desk
from bot.gestures import Clicked, Submitted
from bot.ids import Action, Input, View
from bot.listeners.doors import Doors, Reply
from bot.listeners.verify_click import permitted, verify_click
from bot.listeners.views import (
    decide_from_form,
    open_form,
    rejected_inputs,
    verify_submission,
)
from bot.modals import respond
from gateway.approvals.decisions import Respond
from gateway.approvals.record import Verb


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
