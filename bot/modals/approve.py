"""Modal to approve a call with the reason that the policy asks for."""

from __future__ import annotations

from twokey.bot.cards.frame import Frame
from twokey.bot.ids import Input, View
from twokey.bot.modals.call_form import (
    SubmittedText,
    call_form,
    required_text,
    text_field,
)
from twokey.bot.modals.form import State
from twokey.bot.modals.heading import hint
from twokey.bot.objects import Block
from twokey.gateway.approvals.deciding import MAX_TEXT


def view(frame: Frame, index: int) -> Block:
    """Return the modal in which one call is approved with a reason."""
    reason = text_field(
        Input.REASON,
        "Reason",
        max_length=MAX_TEXT,
        focus=True,
        hint="The agent reads this, and it is kept in the audit log.",
    )
    meaning = (
        "Approving means: this call runs once, as shown, when enough people approve."
    )
    return call_form(
        frame,
        index,
        [reason, hint(meaning)],
        purpose=View.APPROVE,
        title="Approve this call",
        submit="Approve",
    )


def submitted(state: State) -> SubmittedText:
    """Read the modal; a reason of blanks alone is none."""
    return required_text(state, Input.REASON, "Please say why you approve this.")
