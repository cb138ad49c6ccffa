"""Modal to reject a call, or all of a batch, with a reason that the agent reads."""

from __future__ import annotations

from collections.abc import Iterable

from keyturn.bot.blocks import Block, input_block, modal, option, section, select
from keyturn.bot.cards.frame import Frame
from keyturn.bot.ids import Input, View
from keyturn.bot.modals.call_form import SubmittedText, call_form, hint, text_field
from keyturn.bot.modals.form import State, choice_of, text_of
from keyturn.bot.modals.parse_input import BadInput
from keyturn.bot.text import label, template
from keyturn.gateway.approvals.deciding import MAX_TEXT
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.verbs import Verb

PRESETS = {
    "not_needed": "Not needed",
    "wrong_arguments": "The arguments are wrong",
    "against_rules": "Against our rules",
    "more_information": "More information is needed first",
    "duplicate": "Already done",
}
"""Reasons to choose from: the menu's value to the words that the agent reads."""

_SEPARATOR = ": "
_LONGEST = max(map(len, PRESETS.values())) + len(_SEPARATOR)
MAX_REASON = MAX_TEXT - _LONGEST
"""How long a reason may be that somebody writes, beside one that they choose."""

_NEEDED = "Please choose a reason above or write one here."


def view(frame: Frame, index: int, *, words: str = "") -> Block:
    """Return the modal in which one call is rejected; ``words`` stand in it."""
    item = frame.approval.items[index]
    return call_form(
        frame,
        index,
        [
            *reason_inputs(needed=Verb.REJECT in item.requires_reason, words=words),
            hint("Rejecting means: this call does not run, and the agent is told."),
        ],
        purpose=View.REJECT,
        title="Reject this call",
        submit="Reject",
    )


def view_of_all(frame: Frame) -> Block:
    """Return the modal in which every waiting call of a batch is rejected."""
    waiting = [item for item in frame.approval.items if item.is_pending]
    return modal(
        label("Reject all"),
        [
            section(
                template(
                    "*{n} calls* are rejected together. None of them runs, and the "
                    "agent is told.",
                    n=len(waiting),
                )
            ),
            *reason_inputs(needed=needs_reason(waiting)),
        ],
        callback_id=View.REJECT_ALL,
        submit=label(f"Reject {len(waiting)} calls"),
        close=label("Cancel"),
        private_metadata=frame.value(None, View.REJECT_ALL),
    )


def needs_reason(items: Iterable[Item]) -> bool:
    """Return whether one of these calls needs a reason to be rejected."""
    return any(Verb.REJECT in item.requires_reason for item in items)


def reason_inputs(*, needed: bool, words: str = "") -> list[Block]:
    """Return the inputs for the reason of a rejection."""
    menu = select(
        Input.PRESET.value,
        [option(label(words), value) for value, words in PRESETS.items()],
        placeholder=label("Choose a reason"),
    )
    return [
        input_block(label("Reason"), menu, block_id=Input.PRESET.value, optional=True),
        text_field(
            Input.REASON,
            "In your own words",
            initial=words,
            max_length=MAX_REASON,
            hint="The agent reads this. A reason is needed for this tool."
            if needed
            else "The agent reads this.",
            optional=True,
        ),
    ]


def submitted(item: Item, state: State) -> SubmittedText:
    """Read the modal; a tool that requires a reason needs a choice or words."""
    return submitted_reason(state, needed=needs_reason([item]))


def submitted_reason(state: State, *, needed: bool) -> SubmittedText:
    """Read the reason of one rejection or many."""
    text = text_of(state, Input.REASON)
    try:
        preset = PRESETS.get(choice_of(state, Input.PRESET), "")
    except BadInput as error:
        return SubmittedText("", {Input.PRESET.value: str(error)})
    # Preset and words together stay below `MAX_TEXT`: `MAX_REASON` leaves the space for
    # the longest preset.
    reason = _SEPARATOR.join(part for part in (preset, text) if part)
    if needed and not reason:
        return SubmittedText("", {Input.REASON.value: _NEEDED})
    return SubmittedText(reason, {})
