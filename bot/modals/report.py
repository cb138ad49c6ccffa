"""Take a remark about what an agent ran without asking."""

from __future__ import annotations

from twokey.bot.blocks import Block, label, modal, section, template
from twokey.bot.ids import Input, View, seal_notice
from twokey.bot.modals.call_form import text_field
from twokey.bot.modals.edit import text_of
from twokey.bot.modals.form import State
from twokey.gateway.approvals.notice import Notice

MAX_REMARK = 1_000
"""How many characters a remark may have."""


def view(notice: Notice, *, key: bytes, team: str) -> Block:
    """Return the modal in which a notice is reported."""
    said = template(
        "Something is wrong with what ran here? Everybody in the channel sees your "
        "report, and it is kept in the audit log. It undoes nothing."
    )
    return modal(
        label("Report this"),
        [
            section(said),
            text_field(
                Input.REMARK, "What is wrong", max_length=MAX_REMARK, optional=True
            ),
        ],
        callback_id=View.REPORT,
        submit=label("Report"),
        close=label("Cancel"),
        private_metadata=seal_notice(
            notice, None, key=key, team=team, purpose=View.REPORT
        ),
    )


def submitted(state: State) -> str:
    """Return the remark, which may be empty."""
    return text_of(state, Input.REMARK)[:MAX_REMARK]
