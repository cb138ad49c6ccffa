"""Modals to review calls of several approvals in one form, and to show the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from keyturn.bot.blocks import Block, box, context, modal, notice, rich_text, section
from keyturn.bot.cards.listing import call_title, one_line
from keyturn.bot.cards.queue import whole_call, whole_line
from keyturn.bot.cards.states import frozen
from keyturn.bot.ids import View
from keyturn.bot.modals import choose
from keyturn.bot.modals.choose import Choice
from keyturn.bot.modals.reject import needs_reason, reason_inputs
from keyturn.bot.text import Label, Template, fit, joined, label, template, untrusted
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.sandbox.blockkit import limits

_TAG = "keyturn/v1/review"
_DONE_CHARS = 100
_NAME_CHARS = 140


class SeenCall(Record):
    """One call of a form, exactly as its person saw it."""

    approval: str
    index: int
    version: int
    action_hash: str


class Review(Record):
    """The calls of a form in its order, and what was chosen so far."""

    calls: tuple[SeenCall, ...]
    choice: Choice = Choice()

    @property
    def digest(self) -> str:
        """Return the hash of the calls: which, in which order, as they were seen."""
        rows: list[JsonValue] = [
            [call.approval, call.index, call.version, call.action_hash]
            for call in self.calls
        ]
        return digest.tagged_hash(_TAG, digest.canonical(rows))


class Came(StrEnum):
    """What came of one call of a form."""

    APPROVED = "approved"
    REJECTED = "rejected"
    COUNTED = "need more people"
    NOT_DONE = "not done"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one call.

    Attributes:
        number: its number in the form, from 1.
        what: the call in a line; untrusted.
        came: what came of it.
        sentence: what else is to be said.
    """

    number: int
    what: str
    came: Came
    sentence: Template | Label | None = None


def view(items: Sequence[Item], review: Review, *, left_out: int) -> Block:
    """Return the form with a box for each call.

    Args:
        items: the calls, with their place in the form as their index.
        review: which they are.
        left_out: how many more were asked for that cannot be decided here.
    """
    first = items[0]
    name = f"{one_line(first.tool)} · {first.ctx.agent}: {len(items)}"
    intro = template(
        "Ticked calls will be approved as shown. To edit one, leave it unticked and "
        "open it from the list. You confirm on the next page."
    )
    missing = template(
        "1 call is not in this list: it was decided, or needs its own review."
    )
    if left_out > 1:
        missing = template(
            "{n} are not in this list: each was decided, or needs its own review.",
            n=left_out,
        )
    return modal(
        label("Review together"),
        [
            section(untrusted(fit(name, _NAME_CHARS))),
            section(intro),
            *map(context, frozen(items, are_many=len(items) > 1)),
            *([context(missing)] if left_out else []),
            *choose.boxes(items, above=_whole, text=_box_text),
            *choose.rest(items),
        ],
        callback_id=View.REVIEW,
        submit=label("Review"),
        close=label("Cancel"),
        private_metadata=review.digest,
    )


def confirmation(rejected: Sequence[Item], review: Review) -> Block:
    """Return the page that says what will be recorded, before it is."""
    choice = review.choice
    left = {*range(len(review.calls))} - {*choice.approve, *choice.reject}
    each = template("Decisions are saved one by one. You will see the result of each.")
    return modal(
        label("Confirm"),
        [
            *choose.summary(choice, left),
            *(reason_inputs(needed=needs_reason(rejected)) if rejected else []),
            context(each),
        ],
        callback_id=View.REVIEW_CONFIRM,
        submit=label("Submit decisions" if choice.size > 1 else "Submit decision"),
        close=label("Cancel"),
        private_metadata=review.digest,
    )


def loading(calls: int) -> Block:
    """Return the page that is shown while the calls are read."""
    text = template("Reading {n} calls…", n=calls)
    return notice(label("Review together"), text)


def progress(recorded: int, calls: int) -> Block:
    """Return the page that is shown while the rest of the calls is recorded."""
    text = template(
        "*{n} of {all}* are recorded so far; the others follow. This page then says "
        "what came of each. You can close it: the list shows what still waits.",
        n=recorded,
        all=calls,
    )
    return notice(label("Recording…"), text)


def results(found: Sequence[Result]) -> Block:
    """Return the list of what came of each call; what was not done comes first."""
    count = Counter(one.came for one in found)
    words = {
        Came.APPROVED: template("*{n} approved*", n=count[Came.APPROVED]),
        Came.REJECTED: template("*{n} rejected*", n=count[Came.REJECTED]),
        Came.COUNTED: template(
            "*{n} needs more people*"
            if count[Came.COUNTED] == 1
            else "*{n} need more people*",
            n=count[Came.COUNTED],
        ),
        Came.NOT_DONE: template("*{n} not done*", n=count[Came.NOT_DONE]),
    }
    text = joined(" · ", [said for came, said in words.items() if count[came]])
    open_ones = [one for one in found if one.came in {Came.NOT_DONE, Came.COUNTED}]
    open_ones.sort(key=lambda one: one.came is not Came.NOT_DONE)
    done = [one for one in found if one.came in {Came.APPROVED, Came.REJECTED}]
    lines = [f"{one.number}. {one.came}: {fit(one.what, _DONE_CHARS)}" for one in done]
    return modal(
        label("Recorded" if done or count[Came.COUNTED] else "Not done"),
        [
            section(text),
            *(_open_row(one) for one in open_ones),
            *([rich_text(box("\n".join(lines)))] if lines else []),
        ],
        callback_id=View.NOTICE,
        close=label("Close"),
    )


def _open_row(one: Result) -> Block:
    what = untrusted(fit(f"{one.number}. {one.what}", _DONE_CHARS))
    return context(what, *([one.sentence] if one.sentence else []))


def _box_text(item: Item) -> str:
    """Return what stands beside a box: the whole call, or what it does."""
    return fit(_line(item) or f"{item.index + 1}. {call_title(item)}", limits.OPTION)


def _line(item: Item) -> str:
    """Return a call on one line beside its box; "" when it does not fit."""
    line = whole_line(item)
    text = f"{item.index + 1}. {line}"
    return text if line and len(text) <= limits.OPTION else ""


def _whole(group: Sequence[Item]) -> list[Block]:
    """Show the calls of ten boxes whole, where the boxes do not."""
    if all(_line(item) for item in group):
        return []
    parts: list[Block] = []
    lines: list[str] = []
    for item in group:
        line = whole_line(item)
        if line:
            lines.append(f"{item.index + 1}. {line}")
            continue
        # What takes several lines gets boxes of its own, so that no line of it can
        # pass for another call.
        parts += [box("\n".join(lines))] if lines else []
        lines = []
        parts += [box(f"{item.index + 1}."), *map(box, whole_call(item))]
    parts += [box("\n".join(lines))] if lines else []
    return [rich_text(*parts)]
