"""Modal to ask the requester about a call before it is decided."""

from __future__ import annotations

from twokey.bot.blocks import modal, section
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.refs import who
from twokey.bot.ids import Input, View
from twokey.bot.modals.call_form import SubmittedText, required_text, text_field
from twokey.bot.modals.form import State
from twokey.bot.modals.heading import heading, hint
from twokey.bot.objects import Block
from twokey.bot.text_types import label, template
from twokey.gateway.approvals.inquiry import MAX_QUESTION
from twokey.gateway.protocol.records import Person


def view(frame: Frame, index: int | None, requester: Person) -> Block:
    """Return the modal that asks about one call, or about all of a card."""
    approval = frame.approval
    item = approval.items[index] if index is not None else None
    waiting = sum(one.is_pending for one in approval.items)
    whole = section(
        template("About all *{n} calls* that wait.", n=waiting)
        if waiting > 1
        else template("About the *1 call* that still waits.")
    )
    told = template(
        "{who} asked the agent for this. They are mentioned in the thread of the card "
        "and reply there; Slack notifies them if they are in its channel.",
        who=who(requester),
    )
    return modal(
        label("Ask the requester"),
        [
            *(heading(frame, item) if item else [whole]),
            section(told),
            text_field(
                Input.QUESTION, "Your question", max_length=MAX_QUESTION, focus=True
            ),
            hint(
                "The card shows your question and the reply. It waits meanwhile, no "
                "longer than before, and others can decide it. The agent is not told."
            ),
        ],
        callback_id=View.ASK_REQUESTER,
        submit=label("Ask"),
        close=label("Cancel"),
        private_metadata=frame.value(index, View.ASK_REQUESTER),
    )


def submitted(state: State) -> SubmittedText:
    """Read the modal; a question of blanks alone is none."""
    return required_text(state, Input.QUESTION, "Please write a question.")
