"""Approve a call, with the reason that the policy asks for."""

from __future__ import annotations

from dataclasses import dataclass

from bot.blocks import Block, input_block, label, modal, text_input
from bot.ids import Input, View, seal
from bot.modals.edit import text_of
from bot.modals.form import State
from bot.modals.heading import heading, tell
from gateway.approvals.deciding import MAX_TEXT
from gateway.approvals.record import Approval


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a reviewer submitted: the reason, or block id to a sentence."""

    reason: str
    errors: dict[str, str]


def view(approval: Approval, index: int, *, key: bytes, team: str) -> Block:
    """Return the modal in which one call is approved with a reason."""
    item = approval.items[index]
    blocks = [
        *heading(approval, item),
        input_block(
            label("Reason"),
            text_input(
                Input.REASON.value, multiline=True, max_length=MAX_TEXT, focus=True
            ),
            block_id=Input.REASON.value,
            hint=label("The agent reads this, and it is kept in the audit log."),
        ),
        tell("Approving means: this call runs once, as shown, when enough agree."),
    ]
    return modal(
        label("Approve this call"),
        blocks,
        callback_id=View.APPROVE,
        submit=label("Approve"),
        close=label("Cancel"),
        private_metadata=seal(
            approval, index, key=key, team=team, purpose=View.APPROVE
        ),
    )


def submitted(state: State) -> Submitted:
    """Read the modal; a reason of blanks alone is none."""
    reason = text_of(state, Input.REASON)
    if not reason:
        return Submitted("", {Input.REASON.value: "Please say why you approve this."})
    return Submitted(reason, {})
