"""Modals to decide several calls in one form: checkboxes, edits, then a summary.

The calls are those of one card, or a list of separate approvals. No card is visible
behind a list, so its form shows each call whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString, TypeAlias

from pydantic import Field

from keyturn.bot.blocks import (
    Block,
    actions,
    box,
    checkboxes,
    context,
    input_block,
    option,
    radio_buttons,
    rich_text,
    section,
    select,
    titled,
    warning,
)
from keyturn.bot.cards import table
from keyturn.bot.cards.call_rows import decided_alone, each_alone
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import call_title, changes_of, one_line
from keyturn.bot.cards.queue import whole_call, whole_line
from keyturn.bot.cards.refs import calls_named
from keyturn.bot.cards.states import frozen
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.modals.call_form import form, reason_inputs
from keyturn.bot.modals.form import BadInput, InvalidInputs, State, choice_of, raw_value
from keyturn.bot.modals.schema import Kind
from keyturn.bot.text import (
    LINE,
    fit,
    joined,
    label,
    on_one_line,
    template,
    untrusted,
)
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from keyturn.gateway.approvals.editing import edited_document
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.policy.marks import rows_of
from keyturn.gateway.protocol.records import Record, Verb
from keyturn.sandbox.blockkit import limits


class Boxes(Record):
    """Up to ten boxes: the calls' indexes, and what they have in common, if anything.

    ``heading`` has a value of the calls: untrusted text.
    """

    calls: tuple[int, ...]
    heading: str = ""


class Choice(Record):
    """A person's choice so far, by the calls' indexes.

    An edit counts if its call is ticked. A call in none of the three fields stays
    pending. ``seen`` are the calls that were pending when the form was opened, each
    with the content of its card (`_as_shown`): only these, unchanged, can be chosen.
    ``layout`` are the boxes of the form by their block id, and ``unticked`` the calls
    whose box was empty when the form was last drawn. ``is_list``: the calls are on no
    common card, and ``left_out`` of the requested ones cannot be decided here.
    """

    seen: dict[int, str] = Field(default_factory=dict[int, str])
    layout: dict[str, Boxes] = Field(default_factory=dict[str, Boxes])
    unticked: tuple[int, ...] = ()
    is_list: bool = False
    left_out: int = 0

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
        # Each call of a list was shown whole, and could be approved in its row.
        every = approval.items if self.is_list else offered(approval)
        return [item for item in every if self._is_as_seen(item)]

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


def opened(approval: Approval, *, is_list: bool = False, left_out: int = 0) -> Choice:
    """Return an empty choice among the currently pending calls; see `Choice`."""
    waiting = [item for item in approval.items if item.is_pending]
    seen = {item.index: _as_shown(item) for item in waiting}
    layout = arranged(approval)
    return Choice(seen=seen, layout=layout, is_list=is_list, left_out=left_out)


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
_ALL_OR_NOTHING: LiteralString = (
    "All or nothing: if one of these changed meanwhile, none is recorded."
)
_NOTHING = "Nothing is chosen: tick a call, edit one, or reject the others."


def view(frame: Frame, choice: Choice) -> Block:
    """Return the form with a box for each call that may be approved together."""
    approval = frame.approval
    alone = () if choice.is_list else decided_alone(approval)
    shown = choice.offered(approval)
    editable = [item for item in shown if Verb.EDIT in item.allow]
    intro = template(
        "Ticked calls will be approved, with your edits. You confirm on the next page."
    )
    blocks = [
        *(_of_list(approval, choice) if choice.is_list else []),
        section(intro),
        *map(context, frozen(shown)),
        *_same(approval, [item.index for item in shown]),
        *_moved_lines(frame, choice),
        *([each_alone(alone)] if alone else []),
        *([_menus(frame, editable)] if shown else []),
        *_marked(frame, choice, shown),
        *_boxes(shown, choice),
        *_rest(shown),
        *_edits(frame, choice, " (untick it to drop the edit)"),
    ]
    title = "Review together" if choice.is_list else "Choose"
    return form(frame, None, blocks, View.CHOOSE, title, "Review")


def _of_list(approval: Approval, choice: Choice) -> list[Block]:
    """Name the tool and agent of all calls of a list, and the omitted calls."""
    tool, count = one_line(approval.items[0].tool), len(approval.items)
    name = f"{tool} · agent {approval.agent}: {count}"
    missing = template(
        "Not in this list, because decided or in need of an own review: {n}.",
        n=choice.left_out,
    )
    said = [missing] if choice.left_out else []
    return [section(untrusted(fit(name, LINE))), *map(context, said)]


def submitted(items: Sequence[Item], state: State, staged: Choice) -> Choice:
    """Return the choice among the calls that have a box; raises `InvalidInputs`."""
    drawn = _drawn(items, staged)
    below = Input.OTHERS.value if _may_reject(items) else next(iter(drawn), _BOX)
    try:
        ticked = _ticked(state, drawn)
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


def sorted_by(approval: Approval, order: int, state: State, staged: Choice) -> Choice:
    """Return the choice in another order of the calls; the ticks so far are kept."""
    items = staged.offered(approval)
    ticked = _ticked(state, _drawn(items, staged))
    unticked = tuple(item.index for item in items if item.index not in ticked)
    return staged.with_(layout=arranged(approval, order), unticked=unticked)


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
    edited = _as_edited(approval, choice)
    blocks = [
        *_moved_lines(frame, choice, is_again=is_again),
        *map(context, frozen(approved)),
        *_same(approval, choice.approve),
        *_approved_marks(edited, choice),
        *_summary(choice, left),
        *_total(edited, choice),
        *_edits(frame, choice),
        *(_why_rejected(rejected) if rejected else []),
        context(template(_ALL_OR_NOTHING)),
    ]
    submit = "Submit decisions"
    return form(frame, None, blocks, View.CHOOSE_CONFIRM, "Confirm", submit)


def _why_rejected(rejected: Sequence[Item]) -> list[Block]:
    calls = calls_named(item.index for item in rejected)
    question = template("*Why do you reject {calls}?*", calls=calls)
    return [section(question), *reason_inputs(rejected)]


def _same(approval: Approval, indexes: Sequence[int]) -> list[Block]:
    return [warning(label(one)) for one in table.same_calls(approval, indexes)]


def _moved_lines(
    frame: Frame, choice: Choice, *, is_again: bool = False
) -> list[Block]:
    """Name the calls that changed since the form was opened."""
    moved = choice.moved(frame.approval)
    if not (moved or is_again):
        return []
    what = template("list" if choice.is_list else "card")
    changed = "⚠️ The {what} has changed, so nothing is recorded yet."
    said = [template(changed, what=what)]
    if moved:
        calls = calls_named(item.index for item in moved)
        left = "Left out, because they changed: {calls}."
        said.append(template(left, calls=calls))
    return [section(joined(" ", [*said, template("Your other choices are kept.")]))]


def _summary(choice: Choice, left: Iterable[int]) -> list[Block]:
    """List the calls to approve, edit and reject, with their numbers.

    Args:
        choice: the person's choice.
        left: the calls that stay pending.
    """
    parts: Sequence[tuple[LiteralString, Iterable[int]]] = (
        ("to approve", choice.approve),
        ("to approve as edited", choice.edits),
        ("to reject", choice.reject),
        ("to leave waiting", left),
    )
    rows = [(said, sorted(indexes)) for said, indexes in parts]
    rows = [row for row in rows if row[1]]
    counts = [template("*{n} " + said + "*", n=len(those)) for said, those in rows]
    return [
        section(joined(" · ", counts)),
        *(
            # If they are all of one kind, the line above names it.
            context(
                label(
                    f"{said}: ".capitalize() * (len(rows) > 1)
                    + calls_named(indexes).text
                )
            )
            for said, indexes in rows
        ),
    ]


def _total(edited: Approval, choice: Choice) -> list[Block]:
    """Return the total of the approved calls, including edited ones."""
    found = table.sums(table.totals_of(edited), {*choice.approve, *choice.edits})
    return [context(label(f"In total to approve: {found}"))] if found else []


_BOX = "calls."
_MARKED_BOX = "calls.marked."
_MOST_GROUPS = 20
_Groups: TypeAlias = Sequence[tuple[str, Sequence[int]]]
"""Calls by their indexes, in groups with a heading: untrusted text, or ""."""
_LINES = 8


def arranged(approval: Approval, order: int = 0) -> dict[str, Boxes]:
    """Return the boxes of a form: those of marked calls first, then in an order.

    Args:
        approval: the calls.
        order: place of the order in `orders`.
    """
    found = table.noticed(approval)
    marked = [
        one.index for one in table.in_order(approval, found) if one.index in found
    ]
    groups = [*orders(approval).values()][order]
    rest = [
        (head, [one for one in calls if one not in found]) for head, calls in groups
    ]
    # Other ids in another order: Slack keeps ticks by block id.
    place = f"{_BOX}{order}." if order else _BOX
    return layout_of([("", marked)], _MARKED_BOX) | layout_of(rest, place)


def layout_of(groups: _Groups, place: str = _BOX) -> dict[str, Boxes]:
    """Return groups of calls as groups of ten boxes, by their block id."""
    boxes = [
        Boxes(
            calls=tuple(calls[start : start + limits.CHOICES]),
            heading=f"{heading} (continued)" if heading and start else heading,
        )
        for heading, calls in groups
        for start in range(0, len(calls), limits.CHOICES)
    ]
    return {f"{place}{number}": one for number, one in enumerate(boxes)}


def orders(approval: Approval) -> dict[str, _Groups]:
    """Return the ways to sort the calls, by name; each is groups with their headings.

    The calls can be grouped by an argument with few values, such as a cause or a
    customer, with the sum of each group, and sorted by each total.
    """
    indexes, totals = [item.index for item in approval.items], table.totals_of(approval)
    found: dict[str, _Groups] = {"As asked": [("", indexes)]}
    for name, keys in rows_of(approval.items).groupings().items():
        groups = {key: [at for at in keys if keys[at] == key] for key in keys.values()}
        if len(groups) <= _MOST_GROUPS:
            found[f"By {one_line(name)}"] = [
                (
                    f"{name} {key} · {table.sums(totals, {*calls})}".removesuffix(
                        " · "
                    ),
                    calls,
                )
                for key, calls in groups.items()
            ]
    for name, total in totals:
        largest = sorted(total.numbers, key=total.numbers.__getitem__, reverse=True)
        rest = [index for index in indexes if index not in total.numbers]
        found[f"By {name}, largest first"] = [("", [*largest, *rest])]
    return found


def _drawn(items: Sequence[Item], choice: Choice) -> dict[str, list[Item]]:
    """Return the calls that still have a box, by the block id of their group."""
    open_calls = {item.index: item for item in items}
    drawn = {
        name: [open_calls[one] for one in boxes.calls if one in open_calls]
        for name, boxes in choice.layout.items()
    }
    return {name: group for name, group in drawn.items() if group}


def _boxes(items: Sequence[Item], choice: Choice) -> list[Block]:
    """Return a box for each call, in groups of ten; their indexes name them.

    Above a group are the texts for which a box has no room.
    """
    above = _whole if choice.is_list else _long
    # Stable ids: Slack keeps the ticks when an edit redraws the form.
    blocks: list[Block] = []
    for name, group in _drawn(items, choice).items():
        sign = "⚠️ " if name.startswith(_MARKED_BOX) else ""
        options = [
            option(untrusted(sign + _titled(item)), str(item.index)) for item in group
        ]
        calls = calls_named(item.index for item in group).text.capitalize()
        heading = fit(choice.layout[name].heading or calls, LINE)
        ticked = [str(one.index) for one in group if one.index not in choice.unticked]
        boxes = checkboxes(name, options, ticked=ticked)
        blocks += above(group)
        blocks.append(
            input_block(untrusted(heading), boxes, block_id=name, optional=True)
        )
    return blocks


def _marked(frame: Frame, choice: Choice, shown: Sequence[Item]) -> list[Block]:
    """Show the first marked calls whole, with the reasons and a button to edit each."""
    marks = table.marks_by_text(frame.approval)
    blocks: list[Block] = []
    for item in _drawn(shown, choice).get(f"{_MARKED_BOX}0", []):
        reasons = [text for text, calls in marks.items() if item.index in calls]
        text = untrusted("\n⚠️ ".join([_titled(item), *reasons]))
        edit = frame.button(item.index, Action.CHOOSE_EDIT)
        button = edit if Verb.EDIT in item.allow else None
        place = f"choose.edit.{item.index}"
        blocks.append(section(text, accessory=button, block_id=place))
    return blocks


def _approved_marks(edited: Approval, choice: Choice) -> list[Block]:
    """Name the marks of the calls that will be approved, as edited."""
    lines = table.mark_lines(edited, {*choice.approve, *choice.edits})
    if len(lines) > _LINES:
        lines[_LINES:] = [f"and {len(lines) - _LINES} more marks"]
    return [warning(untrusted(one)) for one in lines]


def _as_edited(approval: Approval, choice: Choice) -> Approval:
    """Return the calls as they would run."""
    calls = ((approval.items[index], edit) for index, edit in choice.edits.items())
    return approval.replacing(
        *(item.with_(action=edited_document(item, edit.args)) for item, edit in calls)
    )


def _ticked(state: State, groups: Iterable[str]) -> set[int]:
    """Return the ticked calls.

    Raises:
        BadInput: Slack omitted a group of boxes, which differs from no tick.
    """
    ticked: set[int] = set()
    for name in groups:
        held = state.get(name, {}).get(name)
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


def _menus(frame: Frame, editable: Sequence[Item]) -> Block:
    """Return the menus to edit a call and to sort the calls."""
    edit, sort = Action.CHOOSE_EDIT, Action.CHOOSE_ORDER
    sealed = [
        option(untrusted(name), frame.value(None, sort, page=place))
        for place, name in enumerate(orders(frame.approval), start=1)
    ]
    menus = [select(sort, sealed, placeholder=label("Sort…"))]
    if editable:
        text = label("Edit a call…")
        menus.append(frame.menu(editable, edit, prefix="Call ", placeholder=text))
    return actions(*menus, block_id="choose.edit")


def _edits(frame: Frame, choice: Choice, how_to_drop: str = "") -> list[Block]:
    """Show each edit, with the old and the new arguments."""
    blocks: list[Block] = []
    for index, edit in sorted(choice.edits.items())[:_EDITS_SHOWN]:
        item = frame.approval.items[index]
        change = changes_of(item, item.args, edit.args, budget=_CHANGE)
        head = f"Call {index + 1}, edited{how_to_drop}:"
        blocks.append(rich_text(*titled(head, change)))
    more = len(choice.edits) - _EDITS_SHOWN
    if more > 0:
        blocks.append(context(template("and {n} more edits", n=more)))
    return blocks


def _titled(item: Item) -> str:
    """Return the policy's description of a call, or else its arguments."""
    title = on_one_line(item.description) or whole_line(item) or call_title(item)
    return f"{item.index + 1}. {title}"


def _long(group: Sequence[Item]) -> list[Block]:
    """Show the titles that do not fit in the boxes of a group, each in its own box."""
    titles = [_titled(item) for item in group]
    parts = [box(one) for one in titles if len(one) > limits.OPTION]
    return [rich_text(*parts)] if parts else []


def _is_whole(item: Item) -> bool:
    """Return whether the box of a call has every character of the call."""
    is_line = bool(whole_line(item)) and not item.description
    return is_line and len(_titled(item)) <= limits.OPTION


def _whole(group: Sequence[Item]) -> list[Block]:
    """Show the calls of ten boxes whole, if the boxes do not."""
    if all(_is_whole(item) for item in group):
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
