"""Build the modals of one call: heading, inputs and a signed reference (HMAC).

One of them rejects all calls of a batch, with a reason that the agent reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    box,
    context,
    input_block,
    modal,
    option,
    rich_text,
    section,
    select,
    text_input,
)
from keyturn.bot.cards.buttons import findings_of, if_repeated
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import call_title, listing_of
from keyturn.bot.cards.refs import who
from keyturn.bot.cards.states import because, is_usual, needs, why
from keyturn.bot.ids import Input, View
from keyturn.bot.modals.form import InvalidInputs, State, choice_of, text_of
from keyturn.bot.text import Template, Untrusted, code, fit, label, template, untrusted
from keyturn.gateway.approvals.deciding import MAX_TEXT
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.waiting_changes import MAX_QUESTION
from keyturn.gateway.protocol.records import Finding, Person, Untold, Verb

_TITLE = 300
_TOOL = 80
_CALL = 1_200
REASONS = 200
"""Characters of the reasons in a heading; the details show them all."""


def heading(
    frame: Frame, item: Item, *, with_call: bool = True, is_full: bool = False
) -> list[Block]:
    """Return the heading of a modal: the call, and its unusual requirements.

    Args:
        frame: of the modal.
        item: the call.
        with_call: whether to include its arguments.
        is_full: for the details: include the tier and all reasons.
    """
    blocks: list[Block] = []
    title = call_title(item)
    if with_call:
        blocks.append(section(untrusted(fit(title, _TITLE))))
        blocks.append(rich_text(*map(box, listing_of(item, budget=_CALL).boxes)))
    else:
        tool = "" if item.is_question else f" ({fit(item.tool, _TOOL)})"
        named = f"{fit(title, _TITLE)}{tool}"
        blocks.append(section(untrusted(named)))
    return [*blocks, *_needs(frame, item, is_full=is_full)]


def _needs(frame: Frame, item: Item, *, is_full: bool) -> list[Block]:
    approval = frame.approval
    said: list[Template | Untrusted] = []
    if approval.is_batch:
        of = len(approval.items)
        said.append(template("Call {n} of {of}", n=item.index + 1, of=of))
    if item.is_question:
        said.append(template("A question: it waits for an answer, and nothing runs"))
        return [context(*said)]
    # The reasons that raised the tier first: the first reason is the tier in the
    # policy, which is the least informative, and a long line is cut at its end.
    text = " · ".join((*item.reasons[1:], *item.reasons[:1])) if is_full else why(item)
    if is_full or not is_usual(item):
        words = needs(item)
        if is_full:
            tier = code(item.tier)
            words = template("{words} (tier {tier})", words=words, tier=tier)
        said.append(because(words, text, REASONS))
    return [context(*said)] if said else []


def hint(text: LiteralString) -> Block:
    """Return a small line of help."""
    return context(template(text))


def call_form(
    frame: Frame,
    index: int,
    blocks: Sequence[Block],
    purpose: View,
    title: LiteralString,
    submit: LiteralString,
) -> Block:
    """Return a modal that acts on one call, with the call above these blocks."""
    shown = [*heading(frame, frame.approval.items[index]), *blocks]
    return form(frame, index, shown, purpose, title, submit)


def form(
    frame: Frame,
    index: int | None,
    blocks: Sequence[Block],
    purpose: View,
    title: str,
    submit: str,
) -> Block:
    """Return a modal whose submission acts on a call, or on a card.

    Args:
        frame: of the modal.
        index: of the item; None for the whole card.
        blocks: its content.
        purpose: the effect of a submission; the seal is valid only for this one.
        title: of the modal.
        submit: the label of its button.
    """
    return modal(
        title,
        blocks,
        callback_id=purpose,
        submit=submit,
        private_metadata=frame.value(index, purpose),
    )


def required_text(state: State, block: Input, missing: str) -> str:
    """Read the text of an input; if it is blank, ``missing`` is the error."""
    if text := text_of(state, block):
        return text
    raise InvalidInputs({block.value: missing})


def text_field(
    name: Input,
    title: LiteralString,
    *,
    max_length: int = MAX_TEXT,
    hint: LiteralString | None = None,
    initial: str = "",
    focus: bool = False,
    optional: bool = False,
) -> Block:
    """Return an input for several lines; its block and action have the same id."""
    element = text_input(
        name.value, initial=initial, multiline=True, max_length=max_length, focus=focus
    )
    return input_block(
        label(title),
        element,
        block_id=name.value,
        hint=label(hint) if hint else None,
        optional=optional,
    )


def reason_field(*, focus: bool = False) -> Block:
    """Return the input for the reason of an approval."""
    hint = "The agent reads this, and it is kept in the audit log."
    return text_field(Input.REASON, "Reason", hint=hint, focus=focus)


def approval_form(frame: Frame, index: int) -> Block:
    """Return the modal to approve one call with a reason."""
    meaning = "Runs once, as shown, when enough people approve."
    blocks = [reason_field(focus=True), hint(meaning)]
    return call_form(frame, index, blocks, View.APPROVE, "Approve this call", "Approve")


def response_form(frame: Frame, index: int, *, words: str = "") -> Block:
    """Return the modal to answer one call, with ``words`` as the initial text."""
    answer = text_field(
        Input.MESSAGE,
        "Your answer",
        initial=words,
        focus=True,
        hint="The agent reads it in place of the tool's result.",
    )
    blocks = [answer, hint("Nothing runs; the agent reads your answer.")]
    return call_form(
        frame, index, blocks, View.RESPOND, "Answer the agent", "Send answer"
    )


def question_form(frame: Frame, index: int | None, requester: Person) -> Block:
    """Return the modal that asks about one call, or about all calls of a card."""
    approval = frame.approval
    item = approval.items[index] if index is not None else None
    waiting = sum(one.is_pending for one in approval.items)
    whole = section(
        template("About all *{n} calls* that wait.", n=waiting)
        if waiting > 1
        else template("About the *1 call* that still waits.")
    )
    told = template(
        "{who} is mentioned in the thread of the card and replies there. Slack "
        "notifies them if they are in its channel.",
        who=who(requester),
    )
    blocks = [
        *(heading(frame, item) if item else [whole]),
        section(told),
        text_field(
            Input.QUESTION, "Your question", max_length=MAX_QUESTION, focus=True
        ),
        hint(
            "The card shows your question and the reply. Others can still decide, and "
            "the deadline stays the same. The agent is not told."
        ),
    ]
    return form(frame, index, blocks, View.ASK_REQUESTER, "Ask the requester", "Ask")


_FINDING_NEEDED = "Please choose whether it took effect."


def reconcile_form(frame: Frame, index: int) -> Block:
    """Return the modal that reconciles one call in doubt, or adds a note to it."""
    item = frame.approval.items[index]
    names = findings_of(item)
    menu = select(
        Input.FINDING.value,
        [option(label(words), finding.value) for finding, words in names.items()],
        placeholder=label("Choose one"),
    )
    again = label(f"Run it again: {if_repeated(item)}")
    blocks = [
        input_block(
            label("Did it take effect?"),
            menu,
            block_id=Input.FINDING.value,
            hint=again if Finding.RERUN in names else None,
        ),
        text_field(
            Input.NOTE,
            "What did you find?",
            hint="The agent reads this; the card and the audit log show it.",
            optional=True,
        ),
    ]
    return call_form(
        frame, index, blocks, View.RECONCILE, "Did it take effect?", "Record this"
    )


def submitted_finding(state: State) -> Reconcile:
    """Read the modal; a note without a choice is an error."""
    try:
        finding = Finding(choice_of(state, Input.FINDING))
    except ValueError:
        raise InvalidInputs({Input.FINDING.value: _FINDING_NEEDED}) from None
    return Reconcile(finding=finding, note=text_of(state, Input.NOTE))


MAX_REMARK = 1_000
"""Maximum characters of a remark."""


def report_form(frame: Frame, index: int) -> Block:
    """Return the modal to report the calls of a notification."""
    text = template(
        "Everybody in the channel sees your report, and the audit log keeps it. "
        "Reporting undoes nothing."
    )
    remark = text_field(
        Input.REMARK, "What is wrong", max_length=MAX_REMARK, optional=True
    )
    blocks = [section(text), remark]
    return form(frame, index, blocks, View.REPORT, "Report this", "Report")


def submitted_report(state: State) -> str:
    """Return the remark, which may be empty."""
    # Only Slack's clients enforce `max_length`; a payload can be longer.
    return text_of(state, Input.REMARK)[:MAX_REMARK]


PRESETS = {
    "not_needed": "Not needed",
    "wrong_arguments": "The arguments are wrong",
    "against_rules": "Against our rules",
    "more_information": "More information is needed first",
    "duplicate": "Already done",
}
"""Reasons to choose from: menu value to the text that the agent reads."""

_SEPARATOR = ": "
_LONGEST = max(map(len, PRESETS.values())) + len(_SEPARATOR)
MAX_REASON = MAX_TEXT - _LONGEST
"""Maximum length of a written reason next to a chosen one."""

_REASON_NEEDED = "Please choose a reason above or write one here."


def rejection_form(frame: Frame, index: int, *, words: str = "") -> Block:
    """Return the modal to reject one call, with ``words`` as the initial text."""
    inputs = reason_inputs([frame.approval.items[index]], words=words)
    blocks = [*inputs, hint("Nothing runs, and the agent is told.")]
    return call_form(frame, index, blocks, View.REJECT, "Reject this call", "Reject")


def rejection_of_all_form(frame: Frame) -> Block:
    """Return the modal that rejects every pending call of a batch."""
    waiting = [item for item in frame.approval.items if item.is_pending]
    count = len(waiting)
    text = "All *{n} calls* are rejected. None runs, and the agent is told."
    blocks = [section(template(text, n=count)), *reason_inputs(waiting)]
    submit = f"Reject {count} calls"
    return form(frame, None, blocks, View.REJECT_ALL, "Reject all", submit)


def reason_inputs(items: Iterable[Item], *, words: str = "") -> list[Block]:
    """Return the inputs for the reason of a rejection of these calls."""
    items = [*items]
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
            hint=_who_reads(items) + " A reason is needed for this tool."
            if _needs_reason(items)
            else _who_reads(items),
            optional=True,
        ),
    ]


def submitted_reason(state: State, items: Iterable[Item]) -> str:
    """Read the reason of a rejection of these calls.

    A tool that requires a reason needs a choice or a text.
    """
    text = text_of(state, Input.REASON)
    preset = PRESETS.get(choice_of(state, Input.PRESET), "")
    # Preset and text together stay below `MAX_TEXT`: `MAX_REASON` leaves room for the
    # longest preset.
    reason = _SEPARATOR.join(part for part in (preset, text) if part)
    if not reason and _needs_reason(items):
        raise InvalidInputs({Input.REASON.value: _REASON_NEEDED})
    return reason


def _who_reads(items: Iterable[Item]) -> LiteralString:
    if any(Untold.REJECTION_REASON in item.untold for item in items):
        return "The agent does not read this."
    return "The agent reads this."


def _needs_reason(items: Iterable[Item]) -> bool:
    return any(Verb.REJECT in item.requires_reason for item in items)
