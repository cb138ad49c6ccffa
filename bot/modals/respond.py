"""Modal to respond to the agent instead of running its call."""

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


def view(frame: Frame, index: int, *, words: str = "") -> Block:
    """Return the modal in which one call is answered; ``words`` stand in it."""
    answer = text_field(
        Input.MESSAGE,
        "Your answer",
        initial=words,
        max_length=MAX_TEXT,
        focus=True,
        hint="The agent reads it in place of the tool's result.",
    )
    return call_form(
        frame,
        index,
        [answer, hint("Answering means: this call does not run.")],
        purpose=View.RESPOND,
        title="Answer the agent",
        submit="Send answer",
    )


def submitted(state: State) -> SubmittedText:
    """Read the modal; an answer of blanks alone is none."""
    return required_text(state, Input.MESSAGE, "Please write an answer.")
