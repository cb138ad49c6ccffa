"""Render past decisions, a line each, for the slash command and a modal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from keyturn.bot.blocks import Block, context, input_block, modal, section, text_input
from keyturn.bot.cards.listing import (
    call_title,
    named_values,
    one_line,
    schema_order,
)
from keyturn.bot.cards.refs import short_ref, when, who
from keyturn.bot.ids import Input, View
from keyturn.bot.text import Template, fit, label, template, untrusted
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState, Person

MAX_PAST = 20
"""Maximum number of listed decisions."""

_LINE_CHARS = 160
_WORDS_CHARS = 200

_SAID: dict[EventName, LiteralString] = {
    EventName.ITEM_AUTHORIZED: "🔑 approved by {who} {at} · {id}",
    EventName.ITEM_VOTED: "🗳 approved by {who} {at}, more people needed · {id}",
    EventName.ITEM_REJECTED: "🚫 rejected by {who} {at} · {id}",
    EventName.ITEM_ANSWERED: "💬 answered by {who} {at} · {id}",
    EventName.ITEM_RECONCILED: "🔎 reconciled by {who} {at} · {id}",
}
_IN_DOUBT: LiteralString = (
    "❓ in doubt: nobody knows yet whether it ran · approval given {at} · {id}"
)
_BY_ITSELF: dict[EventName, LiteralString] = {
    EventName.ITEM_EXPIRED: "⌛ expired {at}: nobody decided in time · {id}",
    EventName.ITEM_WITHDRAWN: "↩ withdrawn {at} · {id}",
}


@dataclass(frozen=True, slots=True)
class Past:
    """Decisions that a person may read, and whether there may be more.

    Attributes:
        rows: the newest first.
        words: the search; "" for everything.
        is_mine: whether only this person's decisions were searched.
        is_cut: whether older ones were not searched.
        is_complete: False if Slack did not return all of the person's groups.
    """

    rows: Sequence[tuple[Event, Approval]]
    words: str = ""
    is_mine: bool = False
    is_cut: bool = False
    is_complete: bool = True


def item_of(event: Event, approval: Approval) -> Item | None:
    """Return the call that an event is about."""
    return next((item for item in approval.items if item.id == event.item), None)


def matches(event: Event, approval: Approval, words: str) -> bool:
    """Return whether every word occurs in the visible parts of a decision.

    Hidden parts are not searched: a search must not reveal text that a policy hides.
    """
    item = item_of(event, approval)
    if item is None:
        return False
    names = [call_title(item), one_line(item.tool), approval.agent, approval.id]
    shown = " ".join([*names, _values(item)])
    return all(word in shown.casefold() for word in words.casefold().split())


def _values(item: Item) -> str:
    """Return the visible arguments of a call, as on the card."""
    order = schema_order(item)
    return " ".join(text for _, text in named_values(item.args, item.redact, order))


def past_blocks(past: Past) -> list[Block]:
    """Return a line for each decision, and notes about the list."""
    blocks = [_row(event, approval) for event, approval in past.rows]
    # Decisions that could not be searched may match.
    if not blocks:
        blocks.append(section(_nothing(past)))
    if past.is_cut:
        blocks.append(
            context(
                template(
                    "Only the newest decisions were checked. Search for words, a "
                    "tool, an agent or an id to narrow the list."
                )
            )
        )
    if not past.is_complete:
        blocks.append(
            context(
                template(
                    "This list may be incomplete: Slack did not say which user groups "
                    "you are in. Please try again in a moment."
                )
            )
        )
    return blocks


def past_modal(past: Past) -> Block:
    """Return the modal with decisions and a search."""
    search = text_input(
        Input.SEARCH.value,
        initial=past.words[:_WORDS_CHARS] or None,
        max_length=_WORDS_CHARS,
        placeholder=label("Words of the call, its tool, its agent or its id"),
    )
    return modal(
        label("Decided by you" if past.is_mine else "History"),
        [
            input_block(
                label("Search"), search, block_id=Input.SEARCH.value, optional=True
            ),
            *past_blocks(past),
        ],
        callback_id=View.PAST_MINE if past.is_mine else View.PAST,
        submit=label("Search"),
        close=label("Close"),
    )


def _row(event: Event, approval: Approval) -> Block:
    item = item_of(event, approval)
    what = call_title(item) if item else one_line(event.tool)
    return context(untrusted(fit(what, _LINE_CHARS)), _said(event, item))


def _said(event: Event, item: Item | None) -> Template:
    at, named = when(event.at_ms), short_ref(event.approval)
    is_doubt = item is not None and item.state is ItemState.IN_DOUBT
    if is_doubt and event.name is EventName.ITEM_AUTHORIZED:
        return template(_IN_DOUBT, at=at, id=named)
    team, _, user = event.actor.partition("/")
    said = _SAID.get(event.name)
    if said is None or not user:
        alone = _BY_ITSELF.get(event.name, "decided {at} · {id}")
        return template(alone, at=at, id=named)
    return template(said, who=who(Person(team=team, user=user)), at=at, id=named)


def _nothing(past: Past) -> Template:
    if past.words:
        return template("No decision matches your search.")
    if past.is_mine:
        return template("You have decided nothing that is still kept.")
    return template("There is no decision that you may read.")
