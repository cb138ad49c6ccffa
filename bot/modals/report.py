"""Modal to report a call that ran without review."""

from __future__ import annotations

from twokey.bot.blocks import modal, section
from twokey.bot.cards.frame import Frame
from twokey.bot.ids import Input, View
from twokey.bot.modals.call_form import text_field
from twokey.bot.modals.form import State, text_of
from twokey.bot.objects import Block
from twokey.bot.text_types import label, template

MAX_REMARK = 1_000
"""How many characters a remark may have."""


def view(frame: Frame, index: int) -> Block:
    """Return the modal in which the calls of a notification are reported."""
    text = template(
        "Something is wrong with what ran here? Everybody in the channel sees your "
        "report, and it is kept in the audit log. It undoes nothing."
    )
    return modal(
        label("Report this"),
        [
            section(text),
            text_field(
                Input.REMARK, "What is wrong", max_length=MAX_REMARK, optional=True
            ),
        ],
        callback_id=View.REPORT,
        submit=label("Report"),
        close=label("Cancel"),
        private_metadata=frame.value(index, View.REPORT),
    )


def submitted(state: State) -> str:
    """Return the remark, which may be empty."""
    # Slack holds `max_length` in its clients; a payload can be longer.
    return text_of(state, Input.REMARK)[:MAX_REMARK]
