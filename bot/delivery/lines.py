"""Render events as text: thread replies under a card, or channel messages."""

from __future__ import annotations

from dataclasses import replace

from twokey.bot.blocks import Message, section
from twokey.bot.cards.freeze_messages import FREEZE_EVENTS, freeze_message
from twokey.bot.cards.history import thread_note
from twokey.bot.cards.mentions import mentions_for
from twokey.bot.cards.notification import report_line
from twokey.bot.cards.outcome import agent_answer, run_failed
from twokey.bot.cards.questions import question_message
from twokey.bot.cards.reminders import (
    channel_escalation,
    escalation,
    newly_needed,
    reminder,
    unsettled,
    waits_again,
    with_reviewers,
)
from twokey.bot.delivery.outbox_queue import Line, Topic, Urgency
from twokey.bot.delivery.run_messages import is_about_outage
from twokey.bot.text_types import template
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.states import ItemState

_IN_DOUBT = ItemState.IN_DOUBT
_OF_A_DOUBT = frozenset(
    {
        EventName.APPROVAL_UNSETTLED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_RECONCILED,
        EventName.ITEM_REPORTED,
    }
)
"""What is told under a notification, besides reports."""


def is_silent(event: Event) -> bool:
    """Return whether nothing is ever said of an event, nor shown on a card."""
    if event.approval or is_about_outage(event):
        return False
    return message_without_card(event, command="", is_last=True) is None


def event_lines(
    event: Event, approval: Approval, place: tuple[str, str] | None
) -> list[Line]:
    """Return what is said of an event: in the thread of its card, or elsewhere too.

    Without a card only those are told who are called in other channels.
    """
    if event.name is EventName.APPROVAL_ESCALATED:
        return _escalated(event, approval, place)
    if place is None:
        return []
    if event.name is EventName.APPROVAL_REPORTED:
        return [Line(report_line(event), event.seq, *place, Urgency.NEWS)]
    if approval.is_unasked and event.name not in _OF_A_DOUBT:
        return []  # the message itself shows it
    return _in_thread(event, approval, place)


def _in_thread(event: Event, approval: Approval, place: tuple[str, str]) -> list[Line]:
    urgency = Urgency.NEEDS_PEOPLE
    is_open = approval.state is ApprovalState.OPEN
    asks = frozenset(mentions_for(approval).roles)
    if event.name is EventName.ITEM_REOPENED and is_open:
        again = waits_again(approval, event.reason)
        return [Line(again, event.seq, *place, urgency, asks)]
    if event.name is EventName.APPROVAL_UNSETTLED:
        note, roles = unsettled(approval)
        return [Line(note, event.seq, *place, urgency, roles)] if note else []
    if event.name is not EventName.APPROVAL_REMINDED:
        return _history(event, approval, place)
    # It was decided while the reminder waited for its turn.
    if not is_open:
        return []
    return [Line(reminder(approval), event.seq, *place, urgency, asks)]


def _history(event: Event, approval: Approval, place: tuple[str, str]) -> list[Line]:
    note = thread_note(event, approval)
    item = _waits_by(event, approval)
    if note and item:
        note, roles = with_reviewers(note, approval, item)
        return [Line(note, event.seq, *place, Urgency.NEEDS_PEOPLE, roles)]
    return [Line(note, event.seq, *place)] if note else []


def _waits_by(event: Event, approval: Approval) -> Item | None:
    """Return the call that waits for people as this event made it; None for none."""
    item = next((one for one in approval.items if one.id == event.item), None)
    # An older version was replaced since, by another edit with an event of its own,
    # which mentions the people of the newest one.
    if item is None or event.version != approval.version:
        return None
    is_edited = event.name is EventName.ITEM_EDITED and item.is_pending
    is_doubt = event.name is EventName.ITEM_IN_DOUBT and item.state is _IN_DOUBT
    return item if is_edited or is_doubt else None


def mention_newly_needed(topic: Topic, approval: Approval) -> None:
    """Have those mentioned whose word is needed now, and was not at first."""
    # Lines that wait to be posted count as well, or a second redraw before they are
    # sent would mention the same people twice.
    known = topic.asked.union(*(line.asks for line in topic.notes))
    others = frozenset(mentions_for(approval, but=known).roles)
    if others and topic.place is not None:
        note = newly_needed(approval, but=known)
        line = Line(note, "", *topic.place, Urgency.NEEDS_PEOPLE, others)
        topic.notes.append(line)


def _escalated(
    event: Event, approval: Approval, place: tuple[str, str] | None
) -> list[Line]:
    """Call others: in their channels first, then the line that says who was told."""
    if approval.state is not ApprovalState.OPEN:
        return []
    urgency, channels = Urgency.NEEDS_PEOPLE, approval.waiting.channels
    told = channel_escalation(approval, place[0] if place else "")
    # Only the last line carries the event: a crash before it says all of them again,
    # and the event is acknowledged once everybody was called.
    called = [Line(told, "", at, None, urgency, called=at) for at in channels]
    if place is None:
        return [*called[:-1], *(replace(one, seq=event.seq) for one in called[-1:])]
    message = escalation(approval, {})
    asks = frozenset(mentions_for(approval).roles)
    asks |= {role.name for role in approval.waiting.roles}
    last = Line(message, event.seq, *place, urgency, asks, escalated=approval)
    return [*called, last]


def message_without_card(
    event: Event, *, command: str, is_last: bool
) -> Message | None:
    """Return what is said about a run in its thread, or about a stop to everybody."""
    match event.name:
        case EventName.RUN_STARTED if is_last:
            text = "The agent is working on it."
            return Message((section(template("⏳ I am working on it.")),), text)
        case EventName.RUN_FINISHED if event.data.get("text"):
            return agent_answer(event.data["text"])
        case EventName.RUN_ASKED | EventName.RUN_UNANSWERED:
            return question_message(event)
        case EventName.RUN_FAILED:
            return run_failed()
        case name if name in FREEZE_EVENTS:
            return freeze_message(event, command=command)
        case _:
            return None
