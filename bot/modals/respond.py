"""Answer the agent instead of running its call."""

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
    """What a reviewer submitted: the message, or block id to a sentence."""

    message: str
    errors: dict[str, str]


def view(
    approval: Approval, index: int, *, key: bytes, team: str, words: str = ""
) -> Block:
    """Return the modal in which one call is answered; ``words`` stand in it."""
    item = approval.items[index]
    blocks = [
        *heading(approval, item),
        input_block(
            label("Your answer"),
            text_input(
                Input.MESSAGE.value,
                initial=words,
                multiline=True,
                max_length=MAX_TEXT,
                focus=True,
            ),
            block_id=Input.MESSAGE.value,
            hint=label("The agent reads it in place of the tool's result."),
        ),
        tell("Answering means: this call does not run."),
    ]
    return modal(
        label("Answer the agent"),
        blocks,
        callback_id=View.RESPOND,
        submit=label("Send answer"),
        close=label("Cancel"),
        private_metadata=seal(
            approval, index, key=key, team=team, purpose=View.RESPOND
        ),
    )


def submitted(state: State) -> Submitted:
    """Read the modal; an answer of blanks alone is none."""
    message = text_of(state, Input.MESSAGE)
    if not message:
        return Submitted("", {Input.MESSAGE.value: "Please write an answer."})
    return Submitted(message, {})
