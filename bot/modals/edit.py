"""Build the modal that edits a call's arguments, and read its submission."""

from __future__ import annotations

from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import Block, box, rich_text, warning
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import changes_of
from keyturn.bot.cards.states import counted_votes, roles_of, still_needed
from keyturn.bot.ids import Input, View
from keyturn.bot.modals.call_form import form, heading, hint, text_field
from keyturn.bot.modals.form import (
    InvalidInputs,
    State,
    SubmittedEdit,
    build_form,
    read_form,
    text_of,
)
from keyturn.bot.text import Template, template
from keyturn.gateway.approvals.editing import as_read
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import Tier, Untold, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

_CHANGE = 2_500
_AS_READ = "The tool reads the last change as shown here; nothing ran."
_NO_REASON = "Please say why; the agent reads your reason."
_NO_REASON_HERE = "Please say why; the card and the audit log show your reason."


def view(
    frame: Frame,
    index: int,
    *,
    raised: Item | None = None,
    args: JsonObject | None = None,
    words: str = "",
    is_staged: bool = False,
    is_again: bool = False,
) -> Block:
    """Return the modal with the form for one call.

    Args:
        frame: of the modal.
        index: of the item.
        raised: set after a submission that would raise the requirement: the call with
            the new requirement, and no votes. The same form is shown again, with the
            change and its consequence on top. Slack keeps the inputs.
        args: the submitted arguments.
        words: initial text of the reason.
        is_staged: the edit is stored for a decision on several calls.
        is_again: another edit of this call is stored already.
    """
    item = frame.approval.items[index]
    purpose = View.EDIT if raised is None else View.EDIT_RAISED
    if is_staged:
        purpose = View.CHOOSE_EDIT
    # If its editor may not vote, an edit approves nothing.
    title, submit = "Edit for others", "Submit edit"
    if item.requirement.editor_may_vote:
        title, submit = "Edit and approve", "Approve edit"
    if is_staged:
        title, submit = "Edit one of the calls", "Keep this edit"
    if raised is not None and raised.tier is not Tier.DENY:
        title, submit = "Edit for others", "Submit anyway"
    blocks = [
        *(_raised(raised, item.args if args is None else args) if raised else []),
        *heading(frame, raised or item, with_call=False),
        *([hint("Your new edit replaces the earlier one.")] if is_again else []),
        *([hint(_AS_READ)] if as_read(item) is not item else []),
        *build_form(item).blocks,
        _reason(item, words),
    ]
    return form(frame, index, blocks, purpose, title, submit)


def submitted(item: Item, state: State) -> SubmittedEdit:
    """Read the modal; a change of a tool that requires a reason needs one."""
    found = read_form(item, state)
    reason = text_of(state, Input.REASON)
    if found.changed and _needs_reason(item) and not reason:
        is_read = Untold.EDIT_REASON not in item.untold
        problem = _NO_REASON if is_read else _NO_REASON_HERE
        raise InvalidInputs({Input.REASON.value: problem})
    return replace(found, reason=reason)


def _needs_reason(item: Item) -> bool:
    """Return whether a change needs a reason, because it approves its result."""
    return not {Verb.EDIT, Verb.APPROVE}.isdisjoint(item.requires_reason)


def _reason(item: Item, words: str) -> Block:
    hint = _who_reads(item)
    if _needs_reason(item):
        hint = "Needed when you change something. " + hint
    title = "Why this change?"
    return text_field(Input.REASON, title, initial=words, hint=hint, optional=True)


def _who_reads(item: Item) -> LiteralString:
    if Untold.EDIT in item.untold:
        return "The agent does not learn of your change."
    if Untold.EDIT_REASON in item.untold:
        return "The agent learns of your change, and does not read this."
    return "The agent reads it."


def _raised(raised: Item, args: JsonObject) -> list[Block]:
    text = _needs(raised)
    if raised.tier is Tier.DENY:
        text = template("The policy does not allow these values.")
    change = changes_of(raised, raised.args, args, budget=_CHANGE)
    return [warning(text), rich_text(box(change))]


def _needs(raised: Item) -> Template:
    """Describe the people whom the changed call needs, without its editor."""
    people = counted_votes(raised).need
    who = template("another person")
    if people > 1:
        who = template("{n} other people", n=people)
    return template(
        "This change needs {who} of {roles} to approve it{more}.",
        who=who,
        roles=roles_of(raised.requirement),
        more=still_needed(raised),
    )
