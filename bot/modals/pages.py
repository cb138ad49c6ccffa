"""Paginate a call's arguments, reasons and decision texts; none of them is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twokey.bot.argument_titles import argument_titles
from twokey.bot.cards.call_rows import FINDINGS, late_report
from twokey.bot.cards.chunks import chunks
from twokey.bot.cards.diff import diff, state_text, state_title
from twokey.bot.cards.inquiries import inquiry_parts
from twokey.bot.cards.listing import boxes
from twokey.bot.cards.refs import with_author
from twokey.bot.cards.states import TRIAGE_TITLE
from twokey.bot.modals.heading import REASONS
from twokey.bot.text import reveal
from twokey.gateway.approvals.evidence import original_text
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.questions import indented
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.verbs import Verb

PAGE = 9_000
"""How many characters a page holds; a view takes far more, a reader does not."""

PART = 2_900
"""How many characters a box holds."""

MAX_PARTS = 80
"""How many boxes a page holds: each has a title, and a view takes 100 blocks."""


@dataclass(frozen=True, slots=True)
class Part:
    """One box: a title of ours, and untrusted text below it."""

    title: str
    text: str


def pages(approval: Approval, item: Item) -> tuple[tuple[Part, ...], ...]:
    """Return every part of a call, page by page; at least one page.

    First the arguments that would run, then what was asked for when that was another
    thing, then the words of people, the tool and the agent.
    """
    found: list[list[Part]] = [[]]
    left = PAGE
    for part in _parts(approval, item):
        # `found[-1]` first: a part that is longer than a page gets a page of its own
        # instead of an empty one before it.
        if found[-1] and (len(part.text) > left or len(found[-1]) >= MAX_PARTS):
            found.append([])
            left = PAGE
        found[-1].append(part)
        left -= len(part.text)
    return tuple(tuple(page) for page in found)


def _parts(approval: Approval, item: Item) -> list[Part]:
    if item.is_question:
        return _parts_of_question(approval, item)
    ends = item.decision
    reasons = "\n".join(item.reasons)
    needed = f"Why it needs {'no ' if item.is_auto_approved else ''}review"
    call = "What runs if approved" if item.is_pending else "The call"
    late = late_report(item, item.late_result) if item.late_result else ("", "")
    sections = [
        (call, _call(item, item.args)),
        (state_title(item), [state_text(item)]),
        ("What the agent asked for", _requested(item)),
        ("What the model wrote, read differently by the tool", [_original(item)]),
        ("What the edit changed", _changed(item)),
        ("Why it was edited", [item.edit.reason] if item.edit else []),
        (needed, [reasons] if len(reasons) > REASONS else []),
        (TRIAGE_TITLE, [item.triage.rationale] if item.triage else []),
        ("Reason", [ends.text] if ends and ends.verb is Verb.REJECT else []),
        ("Why it was approved", [vote.reason for vote in item.votes]),
        ("Answer", [ends.text] if ends and ends.verb is Verb.RESPOND else []),
        ("Why it was taken back", [item.revoked.reason] if item.revoked else []),
        *[
            (f"Checked: {FINDINGS[one.finding]}", [one.note])
            for one in item.observations
        ],
        ("Result, as the tool says", [item.result.summary] if item.result else []),
        (late[0], [late[1]]),
        ("Agent says of the call (unverified)", [item.agent_description]),
        ("Agent says (unverified)", [approval.says]),
        *[("Answered before", [with_author(one)]) for one in approval.answered],
        # Last: one that comes while somebody reads moves no page that they have read.
        *inquiry_parts(approval, item.index),
    ]
    return _of(sections)


def _parts_of_question(approval: Approval, item: Item) -> list[Part]:
    ends = item.decision
    title = "Answer" if ends and ends.answers else "Why it was not answered"
    return _of(
        [
            ("What the agent asks", [_asked(item)]),
            (title, [ends.text] if ends else []),
            ("Agent says (unverified)", [approval.says]),
        ]
    )


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


def _requested(item: Item) -> list[str]:
    if item.edit is None:
        return []
    return _call(item, item.requested_args)


def _changed(item: Item) -> list[str]:
    return [] if item.edit is None else [diff(item, budget=PART)]


def _original(item: Item) -> str:
    if item.original_args is None:
        return ""
    return original_text(item.original_args, item.requested_args, item.redact)


def _call(item: Item, args: JsonObject) -> list[str]:
    titles = argument_titles(item.args_schema)
    return [*boxes(item.tool, args, item.redact, titles=titles, preview=item.preview)]


def _split(title: str, text: str) -> list[Part]:
    texts = chunks(text, PART)
    if len(texts) == 1:
        return [Part(title, text)]
    return [
        Part(f"{title}, part {number} of {len(texts)}", part)
        for number, part in enumerate(texts, 1)
    ]
