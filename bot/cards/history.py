"""Render an approval's events as replies in the card's thread.

Slack notifies each person whom a new message mentions, also of every later reply. So a
reply names people only where several take part; the card shows who decided alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    box,
    context,
    quote,
    rich_text,
    said,
    section,
)
from keyturn.bot.cards.frame import is_table
from keyturn.bot.cards.listing import diff
from keyturn.bot.cards.refs import actor, calls_named, when, who
from keyturn.bot.cards.states import (
    FINDINGS,
    about,
    approvals,
    approvers,
    counted_votes,
    handed_to,
    is_own_edit,
    state_sentence,
    still_needed,
)
from keyturn.bot.text import LINE, Template, excerpt, joined, label, template
from keyturn.gateway.approvals.events import (
    BATCH_MEMBER,
    ENDS_DIFFER,
    Event,
    EventName,
    state_after,
)
from keyturn.gateway.approvals.executing import CLAIMED
from keyturn.gateway.approvals.gestures import indexes_in
from keyturn.gateway.approvals.record import Approval, Item, is_collected
from keyturn.gateway.protocol.records import Finding, ItemState

_ERRORS = 10
"""How many errors one reply shows; the card and its details have the others."""
_REASONS = 3
_TEXT = 2_500

_S = ItemState
_EXPLAINED = {
    EventName.ITEM_LAPSED,
    EventName.ITEM_REOPENED,
    EventName.ITEM_WITHDRAWN,
    EventName.ITEM_IN_DOUBT,
}
"""Events whose reason is a sentence of Keyturn, unless a person withdrew the call."""

_DONE = {EventName.ITEM_EXECUTED, EventName.ITEM_HANDED_OVER}
_BY_SOMEBODY = {_S.AUTHORIZED, _S.REJECTED, _S.ANSWERED}


def failures_note(events: Sequence[Event], approval: Approval) -> Message:
    """Return one reply about the calls of these events.

    Args:
        events: failures, or calls that came into doubt, of this approval.
        approval: the record, at the last of them or after it.
    """
    items = {item.id: item for item in approval.items}
    known = [(one, items[one.item]) for one in events if one.item in items]
    if len({item.id for _, item in known}) == 1:
        alone = thread_note(known[-1][0], approval)
        if alone is not None:
            return alone
    found: dict[LiteralString, list[int]] = {}
    for event, item in known:
        found.setdefault(_failure(event, item), []).append(item.index)
    lines = [
        template(said + " {calls}", calls=calls_named(indexes))
        for said, indexes in found.items()
    ]
    blocks: list[Block] = [section(joined("\n", lines))]
    reasons = dict.fromkeys(one.reason for one, _ in known if one.name in _EXPLAINED)
    if said := [label(reason) for reason in reasons if reason][:_REASONS]:
        blocks.append(context(*said))
    if errors := _errors({item.index: item for _, item in known}):
        blocks.append(rich_text(box(errors)))
    count = len({item.id for _, item in known})
    return Message(tuple(blocks), f"{count} calls failed or may have run.")


def _failure(event: Event, item: Item) -> LiteralString:
    if event.name is EventName.ITEM_FAILED:
        return "❌ *Failed:*"
    if item.has_failed:
        return "❌ *Failed. Should they run again?*"
    return "❓ *May have run. Please check:*"


def _errors(items: dict[int, Item]) -> str:
    """Return what the tools say, a line for each call, and how many are not shown."""
    texts = [
        (index, " ".join(item.result.summary.split()))
        for index, item in sorted(items.items())
        if item.result
    ]
    lines = [f"{n + 1}: {excerpt(text, LINE)}" for n, text in texts if text]
    more = len(lines) - _ERRORS
    return "\n".join([*lines[:_ERRORS], *([f"… and {more} more"] if more > 0 else [])])


def item_of(event: Event, approval: Approval) -> Item | None:
    """Return the call that an event is about."""
    return next((item for item in approval.items if item.id == event.item), None)


def thread_note(event: Event, approval: Approval) -> Message | None:
    """Return the line of history for the thread under a card; None for no news.

    Args:
        event: what happened.
        approval: the record, at the event or after it.
    """
    if event.name is EventName.APPROVAL_EXTENDED:
        return _extended(event, approval)
    if event.name in {EventName.APPROVAL_DECIDED, EventName.CALLS_DECIDED}:
        return _decided_together(event)
    # A table says it of each call; 99 replies would hide what needs people.
    if event.name in _DONE and is_table(approval):
        return None
    # One note is about all calls of a card; only an edit has a separate note.
    is_shared = approval.is_batch or is_collected(approval)
    if (
        is_shared
        and BATCH_MEMBER in event.data
        and event.name is not EventName.ITEM_EDITED
    ):
        return None
    item = item_of(event, approval)
    sentence = None if item is None else _sentence(event, item)
    if item is None or sentence is None:
        return None
    text = about([item], sentence)
    if approval.is_batch:
        nth = item.index + 1
        sentence = template("*Call {n}:* {said}", n=nth, said=sentence)
    blocks: list[Block] = [section(sentence)]
    # A label is plain text, for Keyturn's own reasons. People's texts are in a box.
    is_of_person = event.name is EventName.ITEM_WITHDRAWN and item.decision is not None
    if event.reason and event.name in _EXPLAINED and not is_of_person:
        blocks.append(context(label(event.reason)))
    texts = [*_quotes(event.name, item), event.data.get("note", "")]
    quotes = [box(excerpt(text, _TEXT)) for text in texts if text]
    if quotes:
        blocks.append(rich_text(*quotes))
    return Message(tuple(blocks), text)


def _extended(event: Event, approval: Approval) -> Message:
    until_ms = int(event.data.get("expires_at_ms", approval.expires_at_ms))
    extended: LiteralString = "⏳ {who} extended the deadline to {at}."
    if ENDS_DIFFER in event.data:
        # The first one may be as it was: it had all the time that it can get.
        extended = "⏳ {who} extended the deadline. The first call expires {at}."
    sentence = template(extended, who=actor(event.actor), at=when(until_ms))
    return said(sentence)


_PARTS: tuple[LiteralString, ...] = ("approved", "edited", "rejected", "withdrawn")
_NEEDS: LiteralString = ", more people are needed"


def _decided_together(event: Event) -> Message:
    """Say how many calls of a batch were decided at once, and how."""
    waiting = {*indexes_in(event.data.get("waiting", ""))}
    parts: list[Template] = []
    for name in _PARTS:
        indexes = {*indexes_in(event.data.get(name, ""))}
        # The first of two people approves, and the call is not approved by that.
        if ended := indexes - waiting:
            parts.append(template("{n} " + name, n=len(ended)))
        if open_ := indexes & waiting:
            parts.append(template("{n} " + name + _NEEDS, n=len(open_)))
    if left_out := len(indexes_in(event.data.get("left_out", ""))):
        parts.append(template("{n} need another look", n=left_out))
    # Without a name, which would subscribe that person to the thread.
    sentence = template("☑️ *Decided together:* {parts}.", parts=joined(" · ", parts))
    return said(sentence, *([quote(event.reason, _TEXT)] if event.reason else []))


_FIXED = {
    EventName.ITEM_ASKED_ANEW: template("📤 The agent asked again, on a new card."),
    EventName.ITEM_REPEATED: template(
        "🔁 *Not approved:* the same call was approved elsewhere. To run both, approve "
        "again."
    ),
    EventName.ITEM_REOPENED: template("↩ *The approval was taken back.*"),
}


def _sentence(event: Event, item: Item) -> Template | None:
    said = _FIXED.get(event.name)
    match event.name:
        case EventName.ITEM_REOPENED if item.is_restored:
            said = template("⚠️ *Restored from an older copy.*")
        case EventName.ITEM_WANTED_AGAIN:
            said = template(
                "🔁 {who} wants the agent to ask again.", who=actor(event.actor)
            )
        case EventName.ITEM_ASKED_ANEW if event.reason:
            said = template(
                "⚠️ *The agent did not ask again.* Press *Ask again* to retry."
            )
        case EventName.ITEM_EDITED if item.edit is not None:
            said = template("✏️ *Edited* by {who}.", who=who(item.edit.by))
            if is_own_edit(item):
                said = template("✏️ *Edited and approved.*")
        case EventName.ITEM_VOTED if item.votes:
            said = _voted(event, item)
        case EventName.ITEM_OBSERVED | EventName.ITEM_RECONCILED:
            said = _found(event)
        case EventName.ITEM_REPORTED if item.late_result is not None:
            ran: LiteralString = "it ran." if item.late_result.ok else "it failed."
            said = template("⚠️ *Late report from the worker:* " + ran)
        case EventName.ITEM_REPORTED if item.handed.reported is not None:
            ran = "it ran." if item.handed.reported.ok else "it failed."
            said = template("📤 {name} reports: " + ran, name=handed_to(item))
        case _:
            said = said or _reached(event, item)
    return said


def _reached(event: Event, item: Item) -> Template | None:
    """Return the sentence about a state, with names only where several take part.

    A mention subscribes a person to the thread. The card shows who decided alone.
    """
    state = state_after(event.name)
    if state is None or state in {_S.PENDING, *CLAIMED}:
        return None
    # Nobody acted: a connector gave its claim back, because its program was busy.
    if state is _S.AUTHORIZED and item.handed_to and not event.actor:
        return None
    is_several = _needs_several_people(item)
    if state in _BY_SOMEBODY and not approvers(item):
        return None
    has_reason = bool(item.votes and item.votes[-1].reason)
    # The reply about its result implies the approval.
    if state is _S.AUTHORIZED and not (is_several or has_reason):
        return None
    names = state is _S.WITHDRAWN or (state in _BY_SOMEBODY and is_several)
    return state_sentence(item, state, event.at_ms, has_names=names)


def _needs_several_people(item: Item) -> bool:
    """Return whether more than one person has to agree, or already took part."""
    people = {vote.by.user for vote in item.votes}
    if item.edit is not None:
        people.add(item.edit.by.user)
    return counted_votes(item).need > 1 or len(people) > 1


def _found(event: Event) -> Template | None:
    if event.reason not in {*Finding}:
        return None
    said: LiteralString = "🔎 {who} found: " + FINDINGS[Finding(event.reason)] + "."
    if event.name is EventName.ITEM_OBSERVED:
        said += " More people have to agree."
    return template(said, who=actor(event.actor))


def _voted(event: Event, item: Item) -> Template:
    approved = template(
        "👍 {who} approved: {votes}{more}.",
        who=who(item.votes[-1].by),
        votes=approvals(item),
        more=still_needed(item),
    )
    gone: LiteralString = "{who} can no longer decide, so that vote no longer counts."
    lost = event.data.get("no_longer", "").split()
    return joined(" ", [approved, *(template(gone, who=actor(one)) for one in lost)])


_RESULTS = {EventName.ITEM_EXECUTED, EventName.ITEM_FAILED, EventName.ITEM_IN_DOUBT}
_DECISIONS = {
    EventName.ITEM_REJECTED,
    EventName.ITEM_ANSWERED,
    EventName.ITEM_WITHDRAWN,
}


def _quotes(name: EventName, item: Item) -> list[str]:
    """Return the words that belong to an event: of people, or of the tool."""
    if name is EventName.ITEM_EDITED and item.edit is not None:
        return [diff(item, budget=_TEXT), item.edit.reason]
    # The card shows the answers to questions.
    if name in _DECISIONS and item.decision and not item.decision.answers:
        return [item.decision.text]
    if name in {EventName.ITEM_VOTED, EventName.ITEM_AUTHORIZED} and item.votes:
        return [item.votes[-1].reason]
    result = item.late_result if name is EventName.ITEM_REPORTED else None
    if name is EventName.ITEM_NOT_TAKEN:
        return [item.handed.detail]
    if name is EventName.ITEM_REPORTED and item.handed.reported is not None:
        result = item.handed.reported
    if name in _RESULTS:
        result = item.result
    return [result.summary] if result else []
