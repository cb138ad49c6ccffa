"""Render an approval's events as replies in the card's thread.

Slack notifies each person whom a new message mentions, also of every later reply. So a
reply names people only where several take part; the card shows who decided alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import LiteralString

from keyturn.bot.blocks import Block, Message, box, context, quote, rich_text, section
from keyturn.bot.cards.fallbacks import event_fallback
from keyturn.bot.cards.frame import is_table
from keyturn.bot.cards.listing import diff
from keyturn.bot.cards.refs import numbers_ref, utc, when, who
from keyturn.bot.cards.states import (
    NOTHING_RAN,
    approvers,
    by_whom,
    counted_votes,
    is_own_edit,
    so_far,
    still_needed,
    what_ran,
)
from keyturn.bot.text import Template, excerpt, joined, label, template
from keyturn.gateway.approvals.events import (
    BATCH_MEMBER,
    ENDS_DIFFER,
    Event,
    EventName,
)
from keyturn.gateway.approvals.gestures import indexes_in
from keyturn.gateway.approvals.record import Approval, Item, is_collected
from keyturn.gateway.protocol.records import Finding, Person

_ERRORS = 10
"""How many errors one reply shows; the card and its details have the others."""
_ERROR = 200
_REASONS = 3

_FAILED_CALL: LiteralString = "❌ Failed."
_ASKS: LiteralString = "❌ Failed. Should they run again?"
_DOUBT: LiteralString = (
    "❓ We don't know whether these ran: the worker stopped. Please check."
)
_RESTORED_CALL: LiteralString = "❓ May have run. Please check."


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
        found.setdefault(_failure_sentence(event, item), []).append(item.index)
    lines = [
        template("*Calls {numbers}:* " + said, numbers=numbers_ref(indexes))
        for said, indexes in found.items()
    ]
    blocks: list[Block] = [section(joined("\n", lines))]
    reasons = dict.fromkeys(
        one.reason for one, _ in known if one.name is EventName.ITEM_IN_DOUBT
    )
    if said := [label(reason) for reason in reasons if reason][:_REASONS]:
        blocks.append(context(*said))
    if errors := _errors(item for _, item in known):
        blocks.append(rich_text(box(errors)))
    return Message(tuple(blocks), _fallback(known))


def _failure_sentence(event: Event, item: Item) -> LiteralString:
    if event.name is EventName.ITEM_FAILED:
        return _FAILED_CALL
    if item.is_restored:
        return _RESTORED_CALL
    return _ASKS if item.has_failed else _DOUBT


def _errors(items: Iterable[Item]) -> str:
    """Return what the tools say, a line for each call, and how many are not shown."""
    each = {item.index: item.result.summary for item in items if item.result}
    texts = [(index, " ".join(text.split())) for index, text in sorted(each.items())]
    lines = [f"{n + 1}: {excerpt(text, _ERROR).text}" for n, text in texts if text]
    more = len(lines) - _ERRORS
    return "\n".join([*lines[:_ERRORS], *([f"… and {more} more"] if more > 0 else [])])


def _fallback(known: Sequence[tuple[Event, Item]]) -> str:
    count = len({item.id for _, item in known})
    if known[0][0].name is EventName.ITEM_FAILED:
        return f"{count} calls failed."
    return f"Please check {count} calls: they failed or may have run."


_TEXT = 1_500
_CHANGE = 2_500

_NAMED: dict[EventName, LiteralString] = {
    EventName.ITEM_EXPIRED: "⌛ Nobody decided in time. Nothing ran.",
    EventName.ITEM_SUPERSEDED: "⏩ Cancelled: a newer message came. Nothing ran.",
    EventName.ITEM_WITHDRAWN: "↩ Withdrawn by the agent. Nothing ran.",
    EventName.ITEM_LAPSED: "⌛ The approval lapsed. Nothing ran.",
    EventName.ITEM_REOPENED: "↩ The approval was taken back.",
    EventName.ITEM_REPEATED: (
        "🔁 Not approved: the same call was approved elsewhere. To run both, approve "
        "again."
    ),
    EventName.ITEM_EXECUTED: "✅ Done.",
    EventName.ITEM_FAILED: "❌ Failed.",
    EventName.ITEM_IN_DOUBT: (
        "❓ We don't know whether this ran: the worker stopped. Please check."
    ),
}
_RESTORED: dict[EventName, LiteralString] = {
    EventName.ITEM_REOPENED: "⚠️ Restored from an older copy.",
    EventName.ITEM_IN_DOUBT: "❓ May have run. Please check.",
}
_EXPLAINED = {
    EventName.ITEM_LAPSED,
    EventName.ITEM_REOPENED,
    EventName.ITEM_WITHDRAWN,
    EventName.ITEM_IN_DOUBT,
}
"""Events whose reason is a sentence of Keyturn."""

_ENDED: LiteralString = "↩ Withdrawn. Nothing ran."
_BY_SOMEBODY: dict[EventName, LiteralString] = {
    EventName.ITEM_AUTHORIZED: "🔑 Approved",
    EventName.ITEM_REJECTED: "🚫 Rejected",
    EventName.ITEM_ANSWERED: "💬 Answered",
}
_WITH_TEXT = frozenset(
    {EventName.ITEM_REJECTED, EventName.ITEM_ANSWERED, EventName.ITEM_WITHDRAWN}
)
_FAILED: LiteralString = "❌ Failed. Should it run again?"
_WITH_RESULT = {
    EventName.ITEM_EXECUTED,
    EventName.ITEM_FAILED,
    EventName.ITEM_IN_DOUBT,
}
_REPORTED: dict[str, LiteralString] = {
    "executed": "⚠️ Late report from the worker: it ran. People had already checked.",
    "failed": "⚠️ Late report from the worker: it failed. People had already checked.",
}
_OBSERVED: dict[str, LiteralString] = {
    Finding.EXECUTED.value: (
        "🔎 {who} found: it took effect. More people have to agree."
    ),
    Finding.RERUN.value: "🔎 {who} found: run it again. More people have to agree.",
    Finding.SKIP.value: "🔎 {who} found: leave it. More people have to agree.",
}
_FOUND: dict[str, LiteralString] = {
    Finding.EXECUTED.value: "🔎 {who} checked: it took effect.",
    Finding.RERUN.value: "🔎 {who} checked: it runs again.",
    Finding.SKIP.value: "🔎 {who} left it as it is.",
}

_OF_DOUBT = {
    EventName.ITEM_OBSERVED: _OBSERVED,
    EventName.ITEM_RECONCILED: _FOUND,
    EventName.ITEM_REPORTED: _REPORTED,
}


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
    if event.name is EventName.ITEM_EXECUTED and is_table(approval):
        return None
    # One note is about all calls of a card; only an edit has a separate note.
    is_shared = approval.is_batch or is_collected(approval)
    is_member = is_shared and BATCH_MEMBER in event.data
    if is_member and event.name is not EventName.ITEM_EDITED:
        return None
    item = next((each for each in approval.items if each.id == event.item), None)
    sentence = None if item is None else _sentence(event, item)
    if item is None or sentence is None:
        return None
    if approval.is_batch:
        nth = item.index + 1
        sentence = template("*Call {n}:* {said}", n=nth, said=sentence)
    blocks: list[Block] = [section(sentence)]
    # A label is plain text, for Keyturn's own reasons. People's texts are in a box.
    if event.reason and _is_explained(event, item):
        blocks.append(context(label(event.reason)))
    noted = [_cut(event.data.get("note", ""))]
    quotes = [box(text) for text in (*_quotes(event.name, item), *noted) if text]
    if quotes:
        blocks.append(rich_text(*quotes))
    return Message(blocks=tuple(blocks), text=event_fallback(event, item))


def _is_explained(event: Event, item: Item) -> bool:
    """Return whether the reason is a sentence of Keyturn and not a person's text."""
    is_quoted = event.name in _WITH_TEXT and item.decision is not None
    return event.name in _EXPLAINED and not is_quoted


def _extended(event: Event, approval: Approval) -> Message:
    until_ms = int(event.data.get("expires_at_ms", approval.expires_at_ms))
    said: LiteralString = "⏳ {who} extended the deadline to {at}."
    text = "More time to decide: until {at} UTC."
    if ENDS_DIFFER in event.data:
        # The first one may be as it was: it had all the time that it can get.
        said = "⏳ {who} extended the deadline. The first call expires {at}."
        text = "More time to decide: the first call expires {at} UTC."
    sentence = template(said, who=who(_actor(event)), at=when(until_ms))
    text = text.format(at=f"{utc(until_ms):%Y-%m-%d %H:%M}")
    return Message((section(sentence),), text)


_PARTS: dict[str, LiteralString] = {
    "approved": "{n} approved",
    "edited": "{n} edited",
    "rejected": "{n} rejected",
    "withdrawn": "{n} withdrawn",
}
_LEFT_OUT: LiteralString = "{n} need another look"


def _decided_together(event: Event) -> Message:
    """Say how many calls of a batch were decided at once, and how."""
    waiting = {*indexes_in(event.data.get("waiting", ""))}
    parts: list[Template] = []
    decided = 0
    for name, said in _PARTS.items():
        indexes = {*indexes_in(event.data.get(name, ""))}
        decided += len(indexes)
        # The first of two people approves, and the call is not approved by that.
        if ended := indexes - waiting:
            parts.append(template(said, n=len(ended)))
        if open_ := indexes & waiting:
            parts.append(template(said + ", more people are needed", n=len(open_)))
    if left_out := len(indexes_in(event.data.get("left_out", ""))):
        parts.append(template(_LEFT_OUT, n=left_out))
    # Without a name, which would subscribe that person to the thread; see `_decided`.
    sentence = template("☑️ *Decided together:* {parts}", parts=joined(" · ", parts))
    blocks: list[Block] = [section(sentence)]
    if event.reason:
        blocks.append(quote(event.reason, _TEXT))
    text = f"Decided together: {decided} calls."
    if decided == 1:
        text = "Decided: 1 call."
    if waiting:
        text += f" For {len(waiting)} of {decided} more people are needed."
    return Message(tuple(blocks), text)


def _sentence(event: Event, item: Item) -> Template | None:
    name, by = event.name, approvers(item)
    if name in _NAMED:
        return _named(event, item)
    if name is EventName.ITEM_EDITED and item.edit is not None:
        return _edited(item, item.edit.by)
    if name is EventName.ITEM_VOTED and item.votes:
        lost = event.data.get("no_longer", "").split()
        return _voted(item, [_person(one) for one in lost])
    if name in _OF_DOUBT:
        return _of_doubt(event)
    return _decided(name, item) if name in _BY_SOMEBODY and by else None


def _named(event: Event, item: Item) -> Template:
    name = event.name
    is_withdrawn = name is EventName.ITEM_WITHDRAWN
    if is_withdrawn and item.decision is not None:
        said: LiteralString = "↩ Withdrawn by {who}. " + what_ran(item)
        return template(said, who=who(_actor(event)))
    is_by_us = is_withdrawn and (event.reason or item.is_restored)
    sentence = _ENDED if is_by_us else _NAMED[name]
    if item.is_restored:
        sentence = _RESTORED.get(name, sentence)
    elif name is EventName.ITEM_IN_DOUBT and item.has_failed:
        sentence = _FAILED
    return template(sentence.replace(NOTHING_RAN, what_ran(item)))


def _of_doubt(event: Event) -> Template | None:
    sentence = _OF_DOUBT[event.name].get(event.reason)
    if sentence is None or event.name is EventName.ITEM_REPORTED:
        return template(sentence) if sentence else None
    return template(sentence, who=who(_actor(event)))


def _decided(name: EventName, item: Item) -> Template | None:
    # A mention subscribes the person to the thread. The card shows who decided
    # alone, and that person need not be notified of every later reply.
    if needs_several_people(item):
        return template(_BY_SOMEBODY[name] + " by {who}.", who=by_whom(item))
    has_reason = bool(item.votes and item.votes[-1].reason)
    if name is EventName.ITEM_AUTHORIZED and not has_reason:
        # The reply about its result implies the approval.
        return None
    return template(_BY_SOMEBODY[name] + ".")


def needs_several_people(item: Item) -> bool:
    """Return whether more than one person has to agree, or already took part."""
    people = {vote.by.user for vote in item.votes}
    if item.edit is not None:
        people.add(item.edit.by.user)
    return counted_votes(item).need > 1 or len(people) > 1


def _edited(item: Item, editor: Person) -> Template:
    if is_own_edit(item):
        return template("✏️ Edited and approved.")
    return template("✏️ Edited by {who}.", who=who(editor))


def _voted(item: Item, lost: list[Person]) -> Template:
    approved = template(
        "👍 {who} approved: {votes}{more}.",
        who=who(item.votes[-1].by),
        votes=so_far(item),
        more=still_needed(item),
    )
    gone: LiteralString = "{who} can no longer decide, so that vote no longer counts."
    return joined(" ", [approved, *(template(gone, who=who(one)) for one in lost)])


def _quotes(name: EventName, item: Item) -> list[str]:
    if name is EventName.ITEM_EDITED and item.edit is not None:
        return [diff(item, budget=_CHANGE), _cut(item.edit.reason)]
    if name in _WITH_TEXT:
        return [_cut(item.decision.text if item.decision else "")]
    if name in {EventName.ITEM_VOTED, EventName.ITEM_AUTHORIZED} and item.votes:
        return [_cut(item.votes[-1].reason)]
    if name is EventName.ITEM_REPORTED and item.late_result:
        return [_cut(item.late_result.summary)]
    if name in _WITH_RESULT and item.result:
        return [_cut(item.result.summary)]
    return []


def _cut(text: str) -> str:
    return excerpt(text, _TEXT).text


def _actor(event: Event) -> Person:
    return _person(event.actor)


def _person(named: str) -> Person:
    team, _, user = named.partition("/")
    return Person(team=team, user=user)
