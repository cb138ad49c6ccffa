"""Build the details modal: all of a call, page by page; the last page can approve.

Each button to another page is sealed for exactly that page, and only the last page is
sealed for approval: the person who submits it has opened every page before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keyturn.bot.blocks import (
    Block,
    actions,
    button,
    button_row,
    checkboxes,
    context,
    input_block,
    modal,
    option,
    rich_text,
    section,
    titled,
    warning,
)
from keyturn.bot.cards import states
from keyturn.bot.cards.buttons import (
    allow_similar,
    findings,
    form_buttons,
    snooze,
    time_buttons,
)
from keyturn.bot.cards.call_rows import (
    MOST_MIXED,
    content_warnings,
    late_report,
    result_title,
)
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.inquiries import ask_requester, inquiry_parts
from keyturn.bot.cards.listing import boxes_of, diff, state_text, state_title
from keyturn.bot.cards.refs import asked, short_ref, unusual_agent, when, with_author
from keyturn.bot.ids import PAGE, Action, Input, View
from keyturn.bot.modals.call_form import REASONS, heading
from keyturn.bot.modals.form import InvalidInputs, State, input_state
from keyturn.bot.text import NOTE, Plain, chunks, code, label, reveal, template
from keyturn.gateway.approvals.editing import reading_text
from keyturn.gateway.approvals.evidence import original_text
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import end_of
from keyturn.gateway.protocol.questions import indented
from keyturn.gateway.protocol.records import ItemState, Tier, Verb

PAGE_SIZE = 9_000
"""Characters of a page; a view can contain far more, but a reader cannot."""

PART = 2_900
"""Maximum characters of a box."""

MAX_PARTS = 80
"""Maximum boxes of a page: each has a title, and a view has at most 100 blocks."""


_AGENT_SAYS = "The agent's reason (not verified)"
_SOURCE = "A source that the agent names (not verified)"


class Part(NamedTuple):
    """One box: a trusted title, and untrusted text below it."""

    title: str
    text: str


def pages(approval: Approval, item: Item) -> tuple[tuple[Part, ...], ...]:
    """Return every part of a call, page by page; at least one page.

    First the current arguments, then the requested ones if they differ, then the words
    of people, the tool and the agent.
    """
    found: list[list[Part]] = [[]]
    left = PAGE_SIZE
    for part in _parts(approval, item):
        # `found[-1]` first: a part longer than a page gets a page without an empty one
        # before it.
        if found[-1] and (len(part.text) > left or len(found[-1]) >= MAX_PARTS):
            found.append([])
            left = PAGE_SIZE
        found[-1].append(part)
        left -= len(part.text)
    return tuple(tuple(page) for page in found)


def _parts(approval: Approval, item: Item) -> list[Part]:
    ends = item.decision
    if item.is_question:
        answered = "Answer" if ends and ends.answers else "Why it was not answered"
        return _of(
            [
                ("What the agent asks", [_asked(item)]),
                (answered, [ends.text] if ends else []),
                (_AGENT_SAYS, [approval.says]),
            ]
        )
    reasons = "\n".join(item.reasons)
    needed = f"Why it needs {'no ' if item.is_auto_approved else ''}review"
    call = "What runs if approved" if item.is_pending else "The call"
    if item.is_pending and item.handed_to:
        call = "What is handed over if approved"
    late = late_report(item, item.late_result) if item.late_result else ("", "")
    sections: list[tuple[str, Sequence[str]]] = [
        (call, boxes_of(item, item.args)),
        (state_title(item), [state_text(item)]),
        (
            "What the agent asked for",
            boxes_of(item, item.requested_args) if item.edit else [],
        ),
        ("What the model wrote, read differently by the tool", [_original(item)]),
        ("What the edit changed", [diff(item, budget=PART)] if item.edit else []),
        ("Why it was edited", [item.edit.reason] if item.edit else []),
        (needed, [reasons] if len(reasons) > REASONS else []),
        (states.TRIAGE_TITLE, [item.triage.rationale] if item.triage else []),
        ("Reason", [ends.text] if ends and ends.verb is Verb.REJECT else []),
        ("Why it was approved", [vote.reason for vote in item.votes]),
        ("Answer", [ends.text] if ends and ends.verb is Verb.RESPOND else []),
        ("Why it waits again or ended", [item.revoked.reason] if item.revoked else []),
        ("How the tool reads the change (unverified)", [reading_text(item)]),
        *[
            (f"Checked: {states.FINDINGS[one.finding]}", [one.note])
            for one in item.observations
        ],
        *([(result_title(item.result), [item.result.summary])] if item.result else []),
        (late[0], [late[1]]),
        *[(title, [text]) for title, text in states.handed_words(item)],
        (
            "The agent's description of the call (not verified)",
            [item.agent_description],
        ),
        (_AGENT_SAYS, [approval.says]),
        *[(_SOURCE, [f"{one.title}\n{one.url or one.text}"]) for one in item.evidence],
        *[("Answered before", [with_author(one)]) for one in approval.answered],
        # Last: a new inquiry must not move pages that the person has read.
        *inquiry_parts(approval, item.index),
    ]
    return _of(sections)


def _asked(item: Item) -> str:
    """Return the questions of a call with their choices, each of them numbered."""
    rows: list[str] = []
    for number, one in enumerate(item.questions, 1):
        rows.append(f"{number}. {indented(one.question)}")
        rows += [f"   - {indented(choice)}" for choice in one.choices]
    return "\n".join(rows)


def _of(sections: Iterable[tuple[str, Sequence[str]]]) -> list[Part]:
    return [
        part
        for title, texts in sections
        for text in texts
        if text
        for part in _split(title, reveal(text))
    ]


def _origin(frame: Frame) -> Block:
    """Return who asked, and the short id of the approval."""
    short = template("{id}", id=short_ref(frame.approval.id))
    return context(asked(frame), *unusual_agent(frame), short)


def _original(item: Item) -> str:
    if item.original_args is None:
        return ""
    return original_text(item.original_args, item.requested_args, item.redact)


def _split(title: str, text: str) -> list[Part]:
    texts = chunks(text, PART)
    return [
        Part(f"{title}, part {number} of {len(texts)}" if texts[1:] else title, part)
        for number, part in enumerate(texts, 1)
    ]


_TICKED = "yes"
_NOT_TICKED = "Please tick this box first."


def page_count(approval: Approval, index: int) -> int:
    """Return the number of pages of a call."""
    return len(pages(approval, approval.items[index]))


def view(
    frame: Frame,
    index: int,
    number: int,
    *,
    now: Item | None = None,
    note: Plain | None = None,
) -> Block:
    """Return one page of a call; after the expiry it has no approval.

    Args:
        frame: of the modal.
        index: of the item.
        number: the page, from 1; one beyond the last is the last.
        now: the call with its current evaluation. The pages depend only on the record,
            because read pages are counted by their number.
        note: a sentence on top.
    """
    item = frame.approval.items[index]
    now = now or item
    every = pages(frame.approval, item)
    number = min(max(number, 1), len(every))
    is_last = number == len(every)
    # Only a page that is sealed for View.DETAILS can be submitted as an approval; every
    # other one is sealed as a page.
    is_open = frame.can_decide(item)
    can_approve = is_last and is_open and Verb.APPROVE in item.allow
    value = (
        frame.value(index, View.DETAILS)
        if can_approve
        else frame.value(index, PAGE, page=number)
    )
    blocks = [
        *([section(note)] if note else []),
        *(heading(frame, now, with_call=False, is_full=True) if number == 1 else []),
        *([_origin(frame)] if number == 1 else []),
        *map(context, states.frozen([now])),
        *map(warning, content_warnings(item, MOST_MIXED, NOTE)),
        *(rich_text(*titled(one.title, one.text)) for one in every[number - 1]),
        _foot(frame, item, number, len(every)),
        *_buttons(frame, item, number, len(every)),
        *(_of_time(frame, item) if is_last else []),
        *([_read_all()] if can_approve and item.tier is Tier.ESCALATE else []),
    ]
    return modal(
        "Full details",
        blocks,
        callback_id=View.DETAILS,
        submit=f"Approve {item.act}".rstrip() if can_approve else "",
        close="Close",
        private_metadata=value,
    )


def require_read(item: Item, state: State) -> None:
    """Refuse the last page of an escalated call without its tick.

    Raises:
        InvalidInputs: the box is not ticked.
    """
    ticked = input_state(state, Input.READ_ALL).get("selected_options")
    if item.tier is Tier.ESCALATE and not ticked:
        raise InvalidInputs({Input.READ_ALL.value: _NOT_TICKED})


def _foot(frame: Frame, item: Item, number: int, of: int) -> Block:
    approval = frame.approval
    named = template(
        "{id} · version {version} · {hash}",
        id=code(approval.id),
        version=approval.version,
        hash=code(item.action_hash),
    )
    return context(template("Page {number} of {of}", number=number, of=of), named)


def _buttons(frame: Frame, item: Item, number: int, of: int) -> list[Block]:
    offered: list[Block] = []
    if number > 1:
        offered.append(_turn(frame, item.index, number - 1, Action.PAGE_BACK))
    if number < of:
        offered.append(_turn(frame, item.index, number + 1, Action.PAGE_NEXT))
        return button_row(offered)
    if frame.can_decide(item):
        offered += [*form_buttons(frame, item), *allow_similar(frame, item)]
    # A call in a table has no buttons on the card.
    if item.state is ItemState.IN_DOUBT and is_table(frame.approval):
        offered += findings(frame, item)
    if item.index + 1 < len(frame.approval.items):
        offered.append(frame.button(item.index + 1, Action.VIEW_ALL, text="Next call"))
    return button_row(offered)


def _turn(frame: Frame, index: int, number: int, action: Action) -> Block:
    text = "Next page" if action is Action.PAGE_NEXT else "Previous page"
    return button(
        action,
        label(text),
        value=frame.value(index, PAGE, page=number),
        style="primary" if action is Action.PAGE_NEXT else None,
        accessibility_label=label(f"{text}, page {number}"),
    )


def _of_time(frame: Frame, item: Item) -> list[Block]:
    offered = ask_requester(frame, item.index) + time_buttons(frame, is_in_full=True)
    offered += snooze(frame)
    if not offered:
        return []
    until = template("Expires {at}.", at=when(end_of(frame.approval, item)))
    taken = states.taken_by(frame.approval, now_ms=frame.now_ms)
    return [context(until, *([taken] if taken else [])), actions(*offered)]


def _read_all() -> Block:
    return input_block(
        label("This call is escalated"),
        checkboxes(
            Input.READ_ALL.value, [option(label("I have read all of it"), _TICKED)]
        ),
        block_id=Input.READ_ALL.value,
    )
