"""Take an edited call, or say beside the inputs what does not fit."""

from __future__ import annotations

from bot.blocks import template
from bot.desk import Calm, Desk
from bot.gestures import Submitted
from bot.ids import View
from bot.listeners.doors import Doors, Reply
from bot.listeners.full_view import need_full_view
from bot.listeners.seeing import decide
from bot.listeners.views import concluded, rejected_inputs, seen_in_view
from bot.modals import edit
from bot.modals.form import errors_by_block
from gateway.approvals.decisions import Edit, Invalid
from gateway.approvals.record import Verb


def register(doors: Doors) -> None:
    """Answer the submitted form, and the same form after its warning."""
    doors.on_submit(View.EDIT, _submit)
    doors.on_submit(View.EDIT_RAISED, _submit)


async def _submit(desk: Desk, submitted: Submitted) -> Reply:
    looked_at = await seen_in_view(desk, submitted, View.EDIT, View.EDIT_RAISED)
    item = looked_at.item
    await need_full_view(desk, looked_at, submitted.view.user)
    said = edit.submitted(item, submitted.view.values)
    if said.errors:
        return rejected_inputs(said.errors)
    if not said.changed and Verb.APPROVE not in item.allow:
        raise Calm(
            template(
                "Nothing was changed, and this call may not be approved as it is. "
                "Nothing was recorded."
            )
        )
    decision = Edit(args=said.args, reason=said.reason)
    outcome = await decide(desk, looked_at, decision, submitted.who, submitted.digest)
    if isinstance(outcome, Invalid):
        return rejected_inputs(errors_by_block(item, outcome.errors))
    return concluded(outcome, now_ms=looked_at.now_ms)
