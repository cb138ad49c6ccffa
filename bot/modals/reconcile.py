"""Modal to reconcile a call in doubt, and how its submission is read."""

from __future__ import annotations

from twokey.bot.cards.buttons import FINDINGS, FINDINGS_OF_A_FAILURE, if_repeated
from twokey.bot.cards.frame import Frame
from twokey.bot.ids import Input, View
from twokey.bot.inputs import input_block, select
from twokey.bot.modals.call_form import call_form, text_field
from twokey.bot.modals.form import State, choice_of, text_of
from twokey.bot.modals.parse_input import BadInput
from twokey.bot.objects import Block, option
from twokey.bot.text_types import label
from twokey.gateway.approvals.decisions import Reconcile
from twokey.gateway.approvals.reconciling import MAX_NOTE
from twokey.gateway.protocol.verbs import Finding

_NEEDED = "Please choose whether this call took effect."


def view(frame: Frame, index: int) -> Block:
    """Return the modal that reconciles one call in doubt, or adds a note to it."""
    item = frame.approval.items[index]
    names = FINDINGS_OF_A_FAILURE if item.has_failed else FINDINGS
    again = label(f"{names[Finding.RERUN]}: {if_repeated(item)}")
    menu = select(
        Input.FINDING.value,
        [
            option(label(words), finding.value)
            for finding, words in names.items()
            # The agent of a call without review has gone on without its result.
            if not (item.is_auto_approved and finding is Finding.RERUN)
        ],
        placeholder=label("Choose one"),
    )
    blocks = [
        input_block(
            label("Did it take effect?"),
            menu,
            block_id=Input.FINDING.value,
            hint=None if item.is_auto_approved else again,
        ),
        text_field(
            Input.NOTE,
            "What did you find?",
            max_length=MAX_NOTE,
            hint="The agent reads this; the card and the audit log show it.",
            optional=True,
        ),
    ]
    return call_form(
        frame,
        index,
        blocks,
        purpose=View.RECONCILE,
        title="Did it take effect?",
        submit="Record this",
    )


def submitted(state: State) -> Reconcile | dict[str, str]:
    """Read the modal; a note without a choice is an error, told by block id."""
    try:
        finding = Finding(choice_of(state, Input.FINDING))
    # Before ValueError, of which it is a kind.
    except BadInput as error:
        return {Input.FINDING.value: str(error)}
    except ValueError:
        return {Input.FINDING.value: _NEEDED}
    return Reconcile(finding=finding, note=text_of(state, Input.NOTE))
