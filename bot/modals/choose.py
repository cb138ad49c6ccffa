"""Modals to decide each waiting call of a batch: checkboxes, edits, then a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import LiteralString

from pydantic import Field

from keyturn.bot.blocks import (
    Block,
    actions,
    bold,
    box,
    checkboxes,
    context,
    input_block,
    line,
    modal,
    option,
    radio_buttons,
    rich_text,
    section,
    warning,
)
from keyturn.bot.cards.batch_footer import decided_alone
from keyturn.bot.cards.diff import changes_of
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.noticed import mark, noticed
from keyturn.bot.cards.precedents import same_calls
from keyturn.bot.cards.states import frozen, status_sentence
from keyturn.bot.cards.table import calls_named, cell_values, numbers
from keyturn.bot.cards.totals import sums, totals_of
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.modals.form import State, choice_of
from keyturn.bot.modals.parse_input import BadInput, raw_value
from keyturn.bot.modals.reject import needs_reason, reason_inputs
from keyturn.bot.modals.schema import Kind
from keyturn.bot.text import Template, fit, joined, label, template, untrusted
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.verbs import Verb
from keyturn.sandbox.blockkit import limits


class StagedEdit(Record):
    """An edit that is kept until its batch is decided."""

    args: JsonObject
    reason: str = ""


class Choice(Record):
    """What a person chose so far; calls are named by their index.

    An edit counts where its call is ticked. What is in none of the three stays waiting.
    ``seen`` are the calls that waited when the form was opened, each with what its card
    said (`_as_shown`): only these, as they were, can be chosen.
    """

    seen: dict[int, str] = Field(default_factory=dict[int, str])

    approve: tuple[int, ...] = ()
    reject: tuple[int, ...] = ()
    edits: dict[int, StagedEdit] = Field(default_factory=dict[int, StagedEdit])

    @property
    def size(self) -> int:
        """Return how many calls are decided."""
        return len(self.approve) + len(self.reject) + len(self.edits)

    def is_of(self, approval: Approval) -> bool:
        """Return whether the same calls wait as when it was opened, unchanged."""
        waiting = {item.index for item in approval.items if item.is_pending}
        return waiting == self.seen.keys() and not self.moved(approval)

    def moved(self, approval: Approval) -> tuple[Item, ...]:
        """Return the calls that are not any more as they were when it was opened."""
        return tuple(
            item
            for item in approval.items
            if item.index in self.seen and not self._is_as_seen(item)
        )

    def without_moved(self, approval: Approval) -> Choice:
        """Return what of the choice is about calls that are as they were seen."""
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
        """Return what is decided of each waiting call."""
        partition = dict[int, Decision | None].fromkeys(
            item.index for item in approval.items if item.is_pending
        )
        partition |= dict.fromkeys(self.approve, Approve())
        partition |= dict.fromkeys(self.reject, Reject(reason=reason))
        for index, edit in self.edits.items():
            partition[index] = Edit(args=edit.args, reason=edit.reason)
        return partition


def opened(approval: Approval) -> Choice:
    """Return a choice of what can be chosen now, in which nothing is chosen yet."""
    waiting = [item for item in approval.items if item.is_pending]
    return Choice(seen={item.index: _as_shown(item) for item in waiting})


def _as_shown(item: Item) -> str:
    """Return what is another text once a call has to be looked at again."""
    # What would run; since when it waits; whether what it repeats was shown; whether it
    # was restored. A vote is none of these.
    looks = (item.changed_at_ms, item.repeats_seen_ms, int(item.is_restored))
    return " ".join((item.action_hash, *map(str, looks)))


def offered(approval: Approval) -> list[Item]:
    """Return the waiting calls that can be decided together."""
    alone = decided_alone(approval)
    return [
        item for item in approval.items if item.is_pending and item.index not in alone
    ]


_LEAVE, _REJECT = "leave", "reject"
_CHANGE = 300
_EDITS_SHOWN = 20
_MOVED_SHOWN = 5
_NOTHING = "Nothing is chosen: tick a call, edit one, or reject the others."


def view(frame: Frame, choice: Choice, *, now: Sequence[Item] = ()) -> Block:
    """Return the form with a box for each call that may be approved together.

    Args:
        frame: of the form.
        choice: what was chosen so far.
        now: the calls of the card as they are evaluated now.
    """
    approval = frame.approval
    alone = decided_alone(approval)
    shown = choice.offered(approval)
    editable = [item for item in shown if Verb.EDIT in item.allow]
    found = noticed(approval)
    intro = template(
        "Ticked calls will be approved, with your edits. You confirm on the next page."
    )
    return modal(
        label("Choose"),
        [
            section(intro),
            *_frozen(now, {item.index for item in shown}),
            *_same(approval, [item.index for item in shown]),
            *moved_lines(frame, choice),
            *([_alone(alone)] if alone else []),
            *boxes(shown, text=lambda item: line_of(item, mark(item, found))),
            *rest(shown),
            *([_edit_menu(frame, editable)] if editable else []),
            *_edits(frame, choice),
        ],
        callback_id=View.CHOOSE,
        submit=label("Review"),
        close=label("Cancel"),
        private_metadata=frame.value(None, View.CHOOSE),
    )


def submitted(
    approval: Approval, state: State, staged: Choice
) -> tuple[Choice, dict[str, str]]:
    """Read the form: the choice, and by block id why it cannot be taken."""
    return read(staged.offered(approval), state, staged)


def read(
    items: Sequence[Item], state: State, staged: Choice
) -> tuple[Choice, dict[str, str]]:
    """Read the boxes of these calls: the choice, and by block id what is wrong."""
    first = next(iter(_groups(items)), 0)
    below = Input.OTHERS.value if _may_reject(items) else f"{_BOX}{first}"
    try:
        ticked = _ticked(state, _groups(items))
        rejects = _may_reject(items) and choice_of(state, Input.OTHERS) == _REJECT
    except BadInput as error:
        return staged, {below: str(error)}
    open_calls = {item.index for item in items}
    ticked &= open_calls
    edits = {index: one for index, one in staged.edits.items() if index in ticked}
    choice = staged.with_(
        approve=tuple(sorted(ticked - edits.keys())),
        reject=tuple(sorted(open_calls - ticked)) if rejects else (),
        edits=edits,
    )
    if not (choice.approve or choice.reject or choice.edits):
        return staged, {below: _NOTHING}
    return choice, {}


def confirmation(
    frame: Frame,
    choice: Choice,
    *,
    now: Sequence[Item] = (),
    is_again: bool = False,
) -> Block:
    """Return the page that says what will be recorded, before it is.

    Args:
        frame: of the page.
        choice: what was chosen.
        now: the calls of the card as they are evaluated now.
        is_again: it was shown before, and the card has changed since.
    """
    approval = frame.approval
    left = {
        index
        for index, decision in choice.partition(approval, "").items()
        if decision is None
    }
    rejected = [approval.items[index] for index in choice.reject]
    return modal(
        label("Confirm"),
        [
            *moved_lines(frame, choice, is_again=is_again),
            *_frozen(now, {*choice.approve, *choice.edits}),
            *_same(approval, choice.approve),
            *summary(choice, left),
            *_total(approval, choice),
            *_edits(frame, choice),
            *(reason_inputs(needed=needs_reason(rejected)) if rejected else []),
            context(
                template(
                    "All or nothing: if one of these changed meanwhile, none is "
                    "recorded."
                )
            ),
        ],
        callback_id=View.CHOOSE_CONFIRM,
        submit=label("Submit decisions"),
        close=label("Cancel"),
        private_metadata=frame.value(None, View.CHOOSE_CONFIRM),
    )


def _frozen(now: Sequence[Item], indexes: set[int]) -> list[Block]:
    """Say how many of these calls cannot be approved, because of a freeze."""
    found = [item for item in now if item.index in indexes]
    return [context(one) for one in frozen(found, are_many=len(found) > 1)]


def _same(approval: Approval, indexes: Sequence[int]) -> list[Block]:
    return [warning(label(one)) for one in same_calls(approval, indexes)]


def moved_lines(frame: Frame, choice: Choice, *, is_again: bool = False) -> list[Block]:
    """Say which calls moved since the form was opened, and what that means."""
    moved = choice.moved(frame.approval)
    if not (moved or is_again):
        return []
    lines = [_moved_line(frame, item) for item in moved[:_MOVED_SHOWN]]
    if more := len(moved) - len(lines):
        lines.append(template("and {n} more", n=more))
    kept = template(
        "⚠️ The card has changed since you opened this form. Nothing of yours is "
        "recorded yet. What changed is left out; the rest of your choice is kept."
    )
    return [section(joined("\n", [kept, *lines]))]


def _moved_line(frame: Frame, item: Item) -> Template:
    stands = template("It was changed, and waits for a decision of its own.")
    if not item.is_pending:
        stands = status_sentence(frame.approval, item, now_ms=frame.now_ms)
    return joined(" ", [template("*Call {n}:*", n=item.index + 1), stands])


def summary(choice: Choice, left: Iterable[int]) -> list[Block]:
    """Say how many calls are approved, edited and rejected, and which.

    Args:
        choice: what was chosen.
        left: the calls that stay waiting.
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
            # Where they are all of one kind, the line above names it.
            context(label(f"{said}: " * (len(rows) > 1) + calls_named(indexes)))
            for said, indexes in rows
        ),
    ]


def _total(approval: Approval, choice: Choice) -> list[Block]:
    """Return what the calls that are approved come to, with the edits among them."""
    edits = {index: one.args for index, one in choice.edits.items()}
    found = sums(totals_of(approval, edits), {*choice.approve, *edits})
    return [context(label(f"Approved in total: {found}"))] if found else []


_BOX = "calls."


def _groups(items: Sequence[Item]) -> dict[int, list[Item]]:
    """Return the calls by tens.

    By their number and not by their place among those that wait: Slack keeps ticks by
    the id of the group, and a call that was decided meanwhile must not move others.
    """
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.index // limits.CHOICES, []).append(item)
    return groups


def boxes(
    items: Sequence[Item],
    *,
    above: Callable[[Sequence[Item]], list[Block]] = lambda _: [],
    text: Callable[[Item], str] | None = None,
) -> list[Block]:
    """Return a box for each call, in tens.

    Args:
        items: the calls, by whose index they are named.
        above: what stands above ten boxes.
        text: what stands beside a box; None for the arguments.
    """
    named = text or line_of
    # Ids that stay: Slack keeps what is ticked when an edit draws the form again.
    return [
        block
        for place, group in _groups(items).items()
        for block in (
            *above(group),
            input_block(
                label(f"Calls {numbers(item.index for item in group)}"),
                checkboxes(
                    f"{_BOX}{place}",
                    [option(untrusted(named(item)), str(item.index)) for item in group],
                    are_ticked=True,
                ),
                block_id=f"{_BOX}{place}",
                optional=True,
            ),
        )
    ]


def _ticked(state: State, groups: Iterable[int]) -> set[int]:
    """Return the calls that are ticked.

    Raises:
        BadInput: Slack left out a group of boxes, which is not the same as no tick.
    """
    ticked: set[int] = set()
    for place in groups:
        held = state.get(f"{_BOX}{place}", {}).get(f"{_BOX}{place}")
        if held is None:
            raise BadInput("Slack did not send all boxes; please submit again.")
        ticked |= {int(one) for one in raw_value(held, Kind.CHOICES) or ()}
    return ticked


def line_of(item: Item, sign: str = "") -> str:
    """Return a call's number and arguments, as much of them as a box takes."""
    text = " · ".join(f"{name} {text}" for name, text in cell_values(item).items())
    return fit(f"{sign}{item.index + 1}. {text}", limits.OPTION)


def _alone(alone: frozenset[int]) -> Block:
    return context(
        label(f"Open these to decide each on its own: {calls_named(alone)}.")
    )


def _may_reject(waiting: Iterable[Item]) -> bool:
    return all(Verb.REJECT in item.allow for item in waiting)


def rest(offered: Iterable[Item]) -> list[Block]:
    """Ask what to do with calls that are not ticked; nothing where none is rejected."""
    if not _may_reject(offered):
        return []
    choices = [
        option(label("keep waiting"), _LEAVE),
        option(label("reject"), _REJECT),
    ]
    return [
        input_block(
            label("Unticked calls"),
            radio_buttons(Input.OTHERS.value, choices, initial=_LEAVE),
            block_id=Input.OTHERS.value,
        )
    ]


def _edit_menu(frame: Frame, items: Sequence[Item]) -> Block:
    menu = frame.menu(
        items,
        Action.CHOOSE_EDIT,
        prefix="Call ",
        placeholder=label("Edit a call…"),
    )
    return actions(menu, block_id="choose.edit")


def _edits(frame: Frame, choice: Choice) -> list[Block]:
    """Show what was edited, each with what it was and what it would be."""
    blocks: list[Block] = []
    for index, edit in sorted(choice.edits.items())[:_EDITS_SHOWN]:
        item = frame.approval.items[index]
        change = changes_of(item, item.args, edit.args, budget=_CHANGE)
        head = line(
            bold(label(f"Call {index + 1}, edited (untick it to drop the edit):"))
        )
        blocks.append(rich_text(head, box(change)))
    more = len(choice.edits) - _EDITS_SHOWN
    if more > 0:
        blocks.append(context(template("and {n} more edits", n=more)))
    return blocks
