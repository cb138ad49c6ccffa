"""Modals to decide several calls in one form: checkboxes, edits, then a summary.

The calls are those of one batch, or of separate approvals. For separate approvals, a
last page shows the result of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import LiteralString

from pydantic import Field, JsonValue

from keyturn.bot.blocks import (
    Block,
    actions,
    box,
    checkboxes,
    context,
    input_block,
    modal,
    option,
    radio_buttons,
    rich_text,
    section,
    titled,
    warning,
)
from keyturn.bot.cards.call_rows import decided_alone, each_alone
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import call_title, changes_of, one_line
from keyturn.bot.cards.queue import whole_call, whole_line
from keyturn.bot.cards.refs import calls_named
from keyturn.bot.cards.states import frozen
from keyturn.bot.cards.table import mark, noticed, same_calls, sums, totals_of
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.modals.call_form import form, reason_inputs
from keyturn.bot.modals.form import BadInput, InvalidInputs, State, choice_of, raw_value
from keyturn.bot.modals.schema import Kind
from keyturn.bot.text import Label, Template, fit, joined, label, template, untrusted
from keyturn.gateway.approvals.decisions import Approve, Click, Decision, Edit, Reject
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record, Verb
from keyturn.sandbox.blockkit import limits


class Choice(Record):
    """A person's choice so far, by the calls' indexes.

    An edit counts if its call is ticked. A call in none of the three fields stays
    pending. ``seen`` are the calls that were pending when the form was opened, each
    with the content of its card (`_as_shown`): only these, unchanged, can be chosen.
    """

    seen: dict[int, str] = Field(default_factory=dict[int, str])

    approve: tuple[int, ...] = ()
    reject: tuple[int, ...] = ()
    edits: dict[int, Edit] = Field(default_factory=dict[int, Edit])

    @property
    def size(self) -> int:
        """Return the number of decided calls."""
        return len(self.approve) + len(self.reject) + len(self.edits)

    def is_of(self, approval: Approval) -> bool:
        """Return whether the same calls are pending as at the opening, unchanged."""
        waiting = {item.index for item in approval.items if item.is_pending}
        return waiting == self.seen.keys() and not self.moved(approval)

    def moved(self, approval: Approval) -> tuple[Item, ...]:
        """Return the calls that changed since the form was opened."""
        return tuple(
            item
            for item in approval.items
            if item.index in self.seen and not self._is_as_seen(item)
        )

    def without_moved(self, approval: Approval) -> Choice:
        """Return the part of the choice about unchanged calls."""
        kept = {item.index for item in approval.items if self._is_as_seen(item)}
        return self.with_(
            approve=tuple(index for index in self.approve if index in kept),
            reject=tuple(index for index in self.reject if index in kept),
            edits={i: edit for i, edit in self.edits.items() if i in kept},
        )

    def offered(self, approval: Approval) -> list[Item]:
        """Return the calls that have a box."""
        return [item for item in offered(approval) if self._is_as_seen(item)]

    def _is_as_seen(self, item: Item) -> bool:
        return item.is_pending and self.seen.get(item.index) == _as_shown(item)

    def partition(self, approval: Approval, reason: str) -> dict[int, Decision | None]:
        """Return the decision on each pending call, or None."""
        partition = dict[int, Decision | None].fromkeys(
            item.index for item in approval.items if item.is_pending
        )
        return partition | self.decisions(reason)

    def decisions(self, reason: str) -> dict[int, Decision]:
        """Return the decision of each chosen call; ``reason`` is of the rejections."""
        found: dict[int, Decision] = dict.fromkeys(self.approve, Approve())
        found |= dict.fromkeys(self.reject, Reject(reason=reason))
        return found | self.edits


def opened(approval: Approval) -> Choice:
    """Return an empty choice among the currently pending calls."""
    waiting = [item for item in approval.items if item.is_pending]
    return Choice(seen={item.index: _as_shown(item) for item in waiting})


def _as_shown(item: Item) -> str:
    """Return a text that changes when the call needs another look."""
    # The current action, the start of its wait, whether its duplicate was shown, and
    # whether it was restored. A vote changes none of these.
    looks = (item.changed_at_ms, item.repeats_seen_ms, int(item.is_restored))
    return " ".join((item.action_hash, *map(str, looks)))


def offered(approval: Approval) -> list[Item]:
    """Return the pending calls that can be decided together."""
    alone = decided_alone(approval)
    return [
        item for item in approval.items if item.is_pending and item.index not in alone
    ]


_LEAVE, _REJECT = "leave", "reject"
_CHANGE = 300
_EDITS_SHOWN = 20
_NOTHING = "Nothing is chosen: tick a call, edit one, or reject the others."


def view(frame: Frame, choice: Choice) -> Block:
    """Return the form with a box for each call that may be approved together."""
    approval = frame.approval
    alone = decided_alone(approval)
    shown = choice.offered(approval)
    editable = [item for item in shown if Verb.EDIT in item.allow]
    found = noticed(approval)
    intro = template(
        "Ticked calls will be approved, with your edits. You confirm on the next page."
    )
    blocks = [
        section(intro),
        *map(context, frozen(shown)),
        *_same(approval, [item.index for item in shown]),
        *_moved_lines(frame, choice),
        *([each_alone(alone)] if alone else []),
        *_boxes(shown, signs={item.index: mark(item, found) for item in shown}),
        *_rest(shown),
        *([_edit_menu(frame, editable)] if editable else []),
        *_edits(frame, choice),
    ]
    purpose, title = View.CHOOSE, "Choose"
    return form(frame, None, blocks, purpose=purpose, title=title, submit="Review")


def submitted(items: Sequence[Item], state: State, staged: Choice) -> Choice:
    """Return the choice among the calls that have a box; raises `InvalidInputs`."""
    first = next(iter(_groups(items)), 0)
    below = Input.OTHERS.value if _may_reject(items) else f"{_BOX}{first}"
    try:
        ticked = _ticked(state, _groups(items))
        rejects = _may_reject(items) and choice_of(state, Input.OTHERS) == _REJECT
    except BadInput as error:
        raise InvalidInputs({below: str(error)}) from None
    open_calls = {item.index for item in items}
    ticked &= open_calls
    edits = {index: one for index, one in staged.edits.items() if index in ticked}
    choice = staged.with_(
        approve=tuple(sorted(ticked - edits.keys())),
        reject=tuple(sorted(open_calls - ticked)) if rejects else (),
        edits=edits,
    )
    if not choice.size:
        raise InvalidInputs({below: _NOTHING})
    return choice


def confirmation(frame: Frame, choice: Choice, *, is_again: bool = False) -> Block:
    """Return the page that summarizes the decisions before they are recorded.

    Args:
        frame: of the page.
        choice: the person's choice.
        is_again: it was shown before, and the card has changed since.
    """
    approval = frame.approval
    left = {
        index
        for index, decision in choice.partition(approval, "").items()
        if decision is None
    }
    rejected = [approval.items[index] for index in choice.reject]
    approved = [approval.items[index] for index in (*choice.approve, *choice.edits)]
    blocks = [
        *_moved_lines(frame, choice, is_again=is_again),
        *map(context, frozen(approved)),
        *_same(approval, choice.approve),
        *_summary(choice, left),
        *_total(approval, choice),
        *_edits(frame, choice),
    ]
    note = template(
        "All or nothing: if one of these changed meanwhile, none is recorded."
    )
    value = frame.value(None, View.CHOOSE_CONFIRM)
    return _confirm(View.CHOOSE_CONFIRM, blocks, rejected, note, value)


def _confirm(
    view: View,
    blocks: Sequence[Block],
    rejected: Sequence[Item],
    note: Template,
    value: str,
) -> Block:
    """Return the last page; it asks for a reason if calls are rejected."""
    return modal(
        "Confirm",
        [*blocks, *(reason_inputs(rejected) if rejected else []), context(note)],
        callback_id=view,
        submit="Submit decisions",
        private_metadata=value,
    )


def _same(approval: Approval, indexes: Sequence[int]) -> list[Block]:
    return [warning(label(one)) for one in same_calls(approval, indexes)]


def _moved_lines(
    frame: Frame, choice: Choice, *, is_again: bool = False
) -> list[Block]:
    """Name the calls that changed since the form was opened."""
    moved = choice.moved(frame.approval)
    if not (moved or is_again):
        return []
    said = [template("⚠️ The card has changed, so nothing is recorded yet.")]
    if moved:
        calls = calls_named(item.index for item in moved)
        left = "Left out, because they changed: {calls}."
        said.append(template(left, calls=calls))
    return [section(joined(" ", [*said, template("Your other choices are kept.")]))]


def _summary(choice: Choice, left: Iterable[int]) -> list[Block]:
    """List the approved, edited and rejected calls, with their numbers.

    Args:
        choice: the person's choice.
        left: the calls that stay pending.
    """
    parts: Sequence[tuple[LiteralString, Iterable[int]]] = (
        ("approved", choice.approve),
        ("edited", choice.edits),
        ("rejected", choice.reject),
        ("still waiting", left),
    )
    rows = [(said, sorted(indexes)) for said, indexes in parts]
    rows = [row for row in rows if row[1]]
    counts = [template("*{n} " + said + "*", n=len(those)) for said, those in rows]
    return [
        section(joined(" · ", counts)),
        *(
            # If they are all of one kind, the line above names it.
            context(label(f"{said}: " * (len(rows) > 1) + calls_named(indexes).text))
            for said, indexes in rows
        ),
    ]


def _total(approval: Approval, choice: Choice) -> list[Block]:
    """Return the total of the approved calls, including edited ones."""
    edits = {index: one.args for index, one in choice.edits.items()}
    found = sums(totals_of(approval, edits), {*choice.approve, *edits})
    return [context(label(f"Approved in total: {found}"))] if found else []


_BOX = "calls."
_NO_SIGNS: Mapping[int, str] = {}


def _groups(items: Sequence[Item]) -> dict[int, list[Item]]:
    """Return the calls in groups of ten.

    By their number and not by their place among the pending ones: Slack keeps ticks by
    the id of the group, and a call decided in the meantime must not move others.
    """
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.index // limits.CHOICES, []).append(item)
    return groups


def _boxes(
    items: Sequence[Item],
    *,
    above: Callable[[Sequence[Item]], list[Block]] = lambda _: [],
    signs: Mapping[int, str] = _NO_SIGNS,
) -> list[Block]:
    """Return a box for each call, in groups of ten.

    Args:
        items: the calls; their indexes name them.
        above: heading of a group of ten boxes.
        signs: by index, a sign before a call.
    """
    # Stable ids: Slack keeps the ticks when an edit redraws the form.
    blocks: list[Block] = []
    for place, group in _groups(items).items():
        name = f"{_BOX}{place}"
        options = [
            option(
                untrusted(signs.get(item.index, "") + (_line(item) or _titled(item))),
                str(item.index),
            )
            for item in group
        ]
        calls = calls_named(item.index for item in group).text.capitalize()
        boxes = checkboxes(name, options, are_ticked=True)
        blocks += above(group)
        blocks.append(input_block(label(calls), boxes, block_id=name, optional=True))
    return blocks


def _ticked(state: State, groups: Iterable[int]) -> set[int]:
    """Return the ticked calls.

    Raises:
        BadInput: Slack omitted a group of boxes, which differs from no tick.
    """
    ticked: set[int] = set()
    for place in groups:
        held = state.get(f"{_BOX}{place}", {}).get(f"{_BOX}{place}")
        if held is None:
            raise BadInput("Slack did not send all boxes; please submit again.")
        ticked |= {int(one) for one in raw_value(held, Kind.CHOICES) or ()}
    return ticked


def _may_reject(waiting: Iterable[Item]) -> bool:
    return all(Verb.REJECT in item.allow for item in waiting)


def _rest(offered: Iterable[Item]) -> list[Block]:
    """Ask what to do with unticked calls; empty if none can be rejected."""
    if not _may_reject(offered):
        return []
    choices = [option(label("keep waiting"), _LEAVE), option(label("reject"), _REJECT)]
    name = Input.OTHERS.value
    buttons = radio_buttons(name, choices, initial=_LEAVE)
    return [input_block(label("Unticked calls"), buttons, block_id=name)]


def _edit_menu(frame: Frame, items: Sequence[Item]) -> Block:
    menu = frame.menu(
        items, Action.CHOOSE_EDIT, prefix="Call ", placeholder=label("Edit a call…")
    )
    return actions(menu, block_id="choose.edit")


def _edits(frame: Frame, choice: Choice) -> list[Block]:
    """Show each edit, with the old and the new arguments."""
    blocks: list[Block] = []
    for index, edit in sorted(choice.edits.items())[:_EDITS_SHOWN]:
        item = frame.approval.items[index]
        change = changes_of(item, item.args, edit.args, budget=_CHANGE)
        head = f"Call {index + 1}, edited (untick it to drop the edit):"
        blocks.append(rich_text(*titled(head, change)))
    more = len(choice.edits) - _EDITS_SHOWN
    if more > 0:
        blocks.append(context(template("and {n} more edits", n=more)))
    return blocks


_TAG = "keyturn/v1/review"
_DONE_CHARS = 100
_NAME_CHARS = 140


class Review(Record):
    """The calls of a form in its order, and the choice so far."""

    calls: tuple[Click, ...]
    choice: Choice = Choice()

    @property
    def digest(self) -> str:
        """Return the hash of the calls, their order and their seen versions."""
        rows: list[JsonValue] = [
            [call.approval, call.index, call.version, call.action_hash]
            for call in self.calls
        ]
        return digest.tagged_hash(_TAG, digest.canonical(rows))

    def click(self, request_digest: str) -> Click:
        """Return the list as the person saw it; it belongs to no approval."""
        return Click(
            approval="",
            index=0,
            version=0,
            action_hash=self.digest,
            request_digest=request_digest,
        )


class Came(StrEnum):
    """The result of one call of a form."""

    APPROVED = "approved"
    REJECTED = "rejected"
    COUNTED = "need more people"
    NOT_DONE = "not done"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one call.

    Attributes:
        number: its number in the form, from 1.
        what: the call in a line; untrusted.
        came: its result.
        sentence: an additional explanation.
    """

    number: int
    what: str
    came: Came
    sentence: Template | Label | None = None


def review_form(items: Sequence[Item], review: Review, *, left_out: int) -> Block:
    """Return the form with a box for each call.

    Args:
        items: the calls, with their place in the form as their index.
        review: the calls as seen.
        left_out: number of requested calls that cannot be decided here.
    """
    first = items[0]
    name = f"{one_line(first.tool)} · {first.ctx.agent}: {len(items)}"
    intro = template(
        "Ticked calls will be approved as shown. To edit one, leave it unticked and "
        "open it from the list. You confirm on the next page."
    )
    missing = template(
        "Not in this list, because decided or in need of an own review: {n}.",
        n=left_out,
    )
    return modal(
        "Review together",
        [
            section(untrusted(fit(name, _NAME_CHARS))),
            section(intro),
            *map(context, frozen(items)),
            *([context(missing)] if left_out else []),
            *_boxes(items, above=_whole),
            *_rest(items),
        ],
        callback_id=View.REVIEW,
        submit="Review",
        private_metadata=review.digest,
    )


def review_confirmation(rejected: Sequence[Item], review: Review) -> Block:
    """Return the page that summarizes the decisions before they are recorded."""
    choice = review.choice
    left = {*range(len(review.calls))} - {*choice.approve, *choice.reject}
    note = template("You will see the result of each.")
    blocks = _summary(choice, left)
    return _confirm(View.REVIEW_CONFIRM, blocks, rejected, note, review.digest)


def results(found: Sequence[Result]) -> Block:
    """Return the list of results; calls that were not done come first."""
    count = Counter(one.came for one in found)
    text = " · ".join(f"{count[came]} {came}" for came in Came if count[came])
    open_ones = [one for one in found if one.came in {Came.NOT_DONE, Came.COUNTED}]
    open_ones.sort(key=lambda one: one.came is not Came.NOT_DONE)
    done = [one for one in found if one.came in {Came.APPROVED, Came.REJECTED}]
    lines = [f"{one.number}. {one.came}: {fit(one.what, _DONE_CHARS)}" for one in done]
    return modal(
        "Recorded" if done or count[Came.COUNTED] else "Not done",
        [
            section(label(text)),
            *(_open_row(one) for one in open_ones),
            *([rich_text(box("\n".join(lines)))] if lines else []),
        ],
        callback_id=View.NOTICE,
    )


def _open_row(one: Result) -> Block:
    what = untrusted(fit(f"{one.number}. {one.what}", _DONE_CHARS))
    return context(what, *([one.sentence] if one.sentence else []))


def _line(item: Item) -> str:
    """Return a call on one line for its box; "" if it does not fit."""
    line = whole_line(item)
    text = f"{item.index + 1}. {line}"
    return text if line and len(text) <= limits.OPTION else ""


def _titled(item: Item) -> str:
    return f"{item.index + 1}. {call_title(item)}"


def _whole(group: Sequence[Item]) -> list[Block]:
    """Show the calls of ten boxes whole, if the boxes do not."""
    if all(_line(item) for item in group):
        return []
    parts: list[Block] = []
    lines: list[str] = []
    for item in group:
        line = whole_line(item)
        if line:
            lines.append(f"{item.index + 1}. {line}")
            continue
        # A call of several lines gets separate boxes, so that none of its lines can
        # pass for another call.
        parts += [box("\n".join(lines))] if lines else []
        lines = []
        parts += [box(f"{item.index + 1}."), *map(box, whole_call(item))]
    parts += [box("\n".join(lines))] if lines else []
    return [rich_text(*parts)]
