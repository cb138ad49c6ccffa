"""Build the details modal: all of a call, page by page; the last page can approve.

Each button to another page is sealed for exactly that page, and only the last page is
sealed for approval: the person who submits it has opened every page before.
"""

from __future__ import annotations

from typing import LiteralString

from twokey.bot.blocks import (
    actions,
    bold,
    box,
    button,
    context,
    line,
    modal,
    rich_text,
    section,
    warning,
)
from twokey.bot.cards.buttons import (
    allow_similar,
    findings,
    form_buttons,
    time_buttons,
)
from twokey.bot.cards.frame import Frame, is_table
from twokey.bot.cards.inquiries import ask_requester
from twokey.bot.cards.listing import is_misleading
from twokey.bot.cards.refs import when
from twokey.bot.cards.sql_warnings import sql_warnings
from twokey.bot.cards.states import frozen, taken_by
from twokey.bot.ids import PAGE, Action, Input, View
from twokey.bot.inputs import checkboxes, input_block
from twokey.bot.modals.form import State, input_state
from twokey.bot.modals.heading import heading
from twokey.bot.modals.pages import Part, pages
from twokey.bot.objects import Block, option
from twokey.bot.text_types import Plain, code, label, template
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import end_of
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb

_TICKED = "yes"
_NOT_TICKED = "Please tick this box first."


def page_count(approval: Approval, index: int) -> int:
    """Return on how many pages a call is shown."""
    return len(pages(approval, approval.items[index]))


def view(
    frame: Frame,
    index: int,
    number: int,
    *,
    now: Item | None = None,
    note: Plain | None = None,
) -> Block:
    """Return one page of a call; past the expiry nothing can be approved here.

    Args:
        frame: of the modal.
        index: which item of the approval.
        number: the page, from 1; one beyond the last is the last.
        now: the call as it is evaluated now. The pages themselves follow from the
            record alone: which of them somebody has read is counted by it.
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
        *map(context, frozen([now])),
        *_odd(item),
        *_shown(frame, index, number, every[number - 1]),
        _foot(frame, item, number, len(every)),
        *_buttons(frame, item, number, len(every)),
        *(_of_time(frame, item) if is_last else []),
        *([_read_all()] if can_approve and item.tier is Tier.ESCALATE else []),
    ]
    return modal(
        label("Full details"),
        blocks,
        callback_id=View.DETAILS,
        submit=label("Approve") if can_approve else None,
        close=label("Close"),
        private_metadata=value,
    )


def submitted(item: Item, state: State) -> dict[str, str]:
    """Return why the last page cannot be submitted yet: block id to a sentence."""
    if item.tier is not Tier.ESCALATE:
        return {}
    ticked = input_state(state, Input.READ_ALL).get("selected_options")
    return {} if ticked else {Input.READ_ALL.value: _NOT_TICKED}


def _odd(item: Item) -> list[Block]:
    text = template(
        "Hidden or look-alike characters are in this. Hidden ones are shown as ⟦U+…⟧."
    )
    found = [*([text] if is_misleading(item) else []), *sql_warnings(item)]
    return [warning(one) for one in found]


def _shown(
    frame: Frame, index: int, number: int, parts: tuple[Part, ...]
) -> list[Block]:
    return [
        rich_text(
            line(bold(label(part.title))),
            box(part.text),
            block_id=frame.block_id(f"{index}.page{number}.{place}"),
        )
        for place, part in enumerate(parts)
    ]


def _foot(frame: Frame, item: Item, number: int, of: int) -> Block:
    approval = frame.approval
    return context(
        *([template("Page {number} of {of}", number=number, of=of)] * (of > 1)),
        template(
            "{id} · version {version}", id=code(approval.id), version=approval.version
        ),
        template("{hash}", hash=code(item.action_hash)),
        block_id=frame.block_id(f"{item.index}.page{number}.foot"),
    )


def _buttons(frame: Frame, item: Item, number: int, of: int) -> list[Block]:
    offered: list[Block] = []
    if number > 1:
        offered.append(_turn(frame, item.index, number - 1, Action.PAGE_BACK))
    if number < of:
        offered.append(_turn(frame, item.index, number + 1, Action.PAGE_NEXT))
    if number == of and frame.can_decide(item):
        offered += [*form_buttons(frame, item), *allow_similar(frame, item)]
    # A call in a table has no buttons of its own on the card.
    if number == of and item.state is ItemState.IN_DOUBT and is_table(frame.approval):
        offered += findings(frame, item)
    if number == of and item.index + 1 < len(frame.approval.items):
        offered.append(_next_call(frame, item))
    if not offered:
        return []
    name = f"{item.index}.page{number}.actions"
    return [actions(*offered, block_id=frame.block_id(name))]


_TURNS: dict[Action, LiteralString] = {
    Action.PAGE_BACK: "Previous page",
    Action.PAGE_NEXT: "Next page",
}


def _turn(frame: Frame, index: int, number: int, action: Action) -> Block:
    return button(
        action,
        label(_TURNS[action]),
        value=frame.value(index, PAGE, page=number),
        style="primary" if action is Action.PAGE_NEXT else None,
        accessibility_label=label(f"{_TURNS[action]}, page {number}"),
    )


def _of_time(frame: Frame, item: Item) -> list[Block]:
    offered = ask_requester(frame, item.index) + time_buttons(frame, is_in_full=True)
    if not offered:
        return []
    until = template("Expires {at}.", at=when(end_of(frame.approval, item)))
    taken = taken_by(frame.approval, now_ms=frame.now_ms)
    name = f"{item.index}.wait"
    return [
        context(
            until, *([taken] if taken else []), block_id=frame.block_id(f"{name}.until")
        ),
        actions(*offered, block_id=frame.block_id(name)),
    ]


def _next_call(frame: Frame, item: Item) -> Block:
    following = item.index + 1
    return frame.button(
        following,
        Action.VIEW_ALL,
        label("Next call"),
        accessibility_label=label(f"View call {following + 1}"),
    )


def _read_all() -> Block:
    return input_block(
        label("This call is escalated"),
        checkboxes(
            Input.READ_ALL.value, [option(label("I have read all of it"), _TICKED)]
        ),
        block_id=Input.READ_ALL.value,
    )
