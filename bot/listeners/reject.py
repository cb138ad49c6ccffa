"""Reject one call, with a reason that the agent reads."""

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
from twokey.bot.modals import reject
from twokey.gateway.approvals.decisions import Reject
from twokey.gateway.protocol.verbs import Verb


def register(doors: Doors) -> None:
    """Answer the button Reject, and its form."""
    doors.on_action(Action.REJECT, _reject)
    doors.on_submit(View.REJECT, _submit)


async def _reject(desk: Desk, clicked: Clicked) -> None:
    target = await verify_click(desk, clicked, Action.REJECT)
    await permitted(desk, target, Verb.REJECT, clicked.who)
    await open_form(desk, clicked, target, reject.view)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    target = await verify_submission(desk, submitted, View.REJECT)
    said = reject.submitted(target.item, submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    decision = Reject(reason=said.reason)
    return await decide_from_form(desk, target, submitted, decision, block=Input.REASON)
