"""Convert outbox events to Slack messages: thread replies or channel messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from twokey.bot.blocks import Message, section
from twokey.bot.cards.frame import is_table
from twokey.bot.cards.freeze_messages import FREEZE_EVENTS, freeze_message
from twokey.bot.cards.history import thread_note
from twokey.bot.cards.mentions import (
    copies_called,
    copies_for,
    escalation_mentions,
    mentions_for,
)
from twokey.bot.cards.metrics_messages import METRICS_EVENTS, metrics_message
from twokey.bot.cards.notification import report_line
from twokey.bot.cards.question_card import question_note
from twokey.bot.cards.questions import question_message
from twokey.bot.cards.reminders import (
    NEEDED_NOW,
    called_sentence,
    channel_escalation,
    doubt_sentence,
    escalation,
    newly_needed,
    personal_reply,
    reminder,
    reminder_sentence,
    still_in_doubt,
    waits_again,
    waits_again_sentence,
    with_reviewers,
)
from twokey.bot.cards.reply_texts import (
    agent_answer,
    no_answer,
    run_failed,
    shortened,
    unshown_answer,
)
from twokey.bot.cards.security_messages import SECURITY_EVENTS, security_message
from twokey.bot.cards.spot_check import answered_note, asked_note
from twokey.bot.delivery.inquiry_messages import INQUIRY_EVENTS, inquiry_messages
from twokey.bot.delivery.queue_entry import QueuedMessage, QueueEntry, Urgency
from twokey.bot.delivery.run_messages import is_about_outage
from twokey.bot.text_types import Template, template
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import is_over
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.cards import CardPlace

POSTED_IN_CHANNEL = FREEZE_EVENTS | METRICS_EVENTS | SECURITY_EVENTS
"""Events that are posted in a channel, not in the thread of a card or a run."""

_NO_COPIES: dict[str, tuple[str, str]] = {}
_IN_DOUBT = ItemState.IN_DOUBT
_PROGRESS = frozenset(
    {EventName.ITEM_EXECUTING, EventName.ITEM_EXECUTED, EventName.ITEM_FAILED}
)
_OF_A_DOUBT = frozenset(
    {
        EventName.APPROVAL_STILL_IN_DOUBT,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_RECONCILED,
        EventName.ITEM_REPORTED,
    }
)
"""Events that get a thread reply under a notification, besides reports."""


def is_silent(event: Event) -> bool:
    """Return whether an event changes no card and causes no message."""
    if event.card or is_about_outage(event):
        return False
    return message_without_card(event, command="", is_last=True) is None


def messages_of(
    event: Event,
    approval: Approval,
    place: tuple[str, str] | None,
    copies: Mapping[str, tuple[str, str]] = _NO_COPIES,
) -> list[QueuedMessage]:
    """Return the messages for an event: thread replies, and channel escalations.

    Without a card there is no thread, so only other channels get a message. Where the
    thread mentions people, those with a copy are told in the thread of that.
    """
    if event.name in INQUIRY_EVENTS:
        return inquiry_messages(event, approval, place, copies)
    found = _messages_of(event, approval, place)
    if not found:
        return found
    # First, since only the last message carries the event: it is acknowledged after
    # all of them.
    return [*_to_copies(event, approval, copies), *found]


def _to_copies(
    event: Event, approval: Approval, copies: Mapping[str, tuple[str, str]]
) -> list[QueuedMessage]:
    sentence, taken = _personal(event, approval), approval.acknowledged
    if sentence is None:
        return []
    # Who said "I'm on it" is reminded by nothing.
    is_reminder = event.name is EventName.APPROVAL_REMINDED
    spared = taken.by.user if taken and is_reminder else ""
    is_call = event.name is EventName.APPROVAL_ESCALATED
    whom = copies_called(approval) if is_call else copies_for(approval)
    urgency = Urgency.NEEDS_PEOPLE
    return [
        QueuedMessage(
            personal_reply(approval, sentence, user), "", *copies[user], urgency
        )
        for user in whom
        if user in copies and user != spared
    ]


def _personal(event: Event, approval: Approval) -> Template | None:
    """Return what people with a copy are told of an event; None for nothing."""
    if event.name is EventName.APPROVAL_REMINDED:
        return reminder_sentence(approval)
    if event.name is EventName.APPROVAL_ESCALATED:
        return called_sentence(approval)
    if event.name is EventName.ITEM_REOPENED:
        return waits_again_sentence(approval)
    if event.name is EventName.APPROVAL_STILL_IN_DOUBT:
        return doubt_sentence(approval)
    return NEEDED_NOW if _item_now_waiting(event, approval) else None


def _messages_of(
    event: Event, approval: Approval, place: tuple[str, str] | None
) -> list[QueuedMessage]:
    if event.name is EventName.APPROVAL_ESCALATED:
        return _escalated(event, approval, place)
    if place is None:
        return []
    if event.name is EventName.APPROVAL_REPORTED:
        return [
            QueuedMessage(report_line(event), event.seq, *place, Urgency.CARD_UPDATE)
        ]
    if event.name in {EventName.ITEM_CHECK_ASKED, EventName.ITEM_CHECKED}:
        return _of_spot_check(event, approval, place)
    if approval.is_auto_approved and event.name not in _OF_A_DOUBT:
        return []  # the notification itself shows it
    return _in_thread(event, approval, place)


def _of_spot_check(
    event: Event, approval: Approval, place: tuple[str, str]
) -> list[QueuedMessage]:
    item = next((one for one in approval.items if one.id == event.item), None)
    if item is None or item.spot_check is None:
        return []
    if event.name is EventName.ITEM_CHECKED:
        note = answered_note(approval, item, item.spot_check)
        return [QueuedMessage(note, event.seq, *place)]
    # Answered while this waited to be posted: nobody is asked any more.
    if not item.is_to_be_checked:
        return []
    return [QueuedMessage(asked_note(approval, item), event.seq, *place)]


def _in_thread(
    event: Event, approval: Approval, place: tuple[str, str]
) -> list[QueuedMessage]:
    urgency = Urgency.NEEDS_PEOPLE
    is_open = approval.state is ApprovalState.OPEN
    roles = frozenset(mentions_for(approval).roles)
    if event.name is EventName.ITEM_REOPENED and is_open:
        again = waits_again(approval, event.reason)
        return [QueuedMessage(again, event.seq, *place, urgency, roles)]
    if event.name is EventName.APPROVAL_STILL_IN_DOUBT:
        note, roles = still_in_doubt(approval)
        return [QueuedMessage(note, event.seq, *place, urgency, roles)] if note else []
    if event.name is not EventName.APPROVAL_REMINDED:
        return _history(event, approval, place)
    # The approval may have been decided while the reminder was queued.
    if not is_open:
        return []
    return [QueuedMessage(reminder(approval), event.seq, *place, urgency, roles)]


def _history(
    event: Event, approval: Approval, place: tuple[str, str]
) -> list[QueuedMessage]:
    if approval.is_standing:
        return []  # its card says it all, and there may be many uses
    said = question_note if approval.is_question else thread_note
    note = said(event, approval)
    item = _item_now_waiting(event, approval)
    if note and item:
        note, roles = with_reviewers(note, approval, item)
        return [QueuedMessage(note, event.seq, *place, Urgency.NEEDS_PEOPLE, roles)]
    return [QueuedMessage(note, event.seq, *place)] if note else []


def _item_now_waiting(event: Event, approval: Approval) -> Item | None:
    """Return the call if this event made it wait for people; None otherwise."""
    item = next((one for one in approval.items if one.id == event.item), None)
    # An older version was replaced since, by another edit with an event of its own,
    # which mentions the people of the newest one.
    if item is None or event.version != approval.version:
        return None
    is_edited = event.name is EventName.ITEM_EDITED and item.is_pending
    is_doubt = event.name is EventName.ITEM_IN_DOUBT and item.state is _IN_DOUBT
    return item if is_edited or is_doubt else None


def is_progress(approval: Approval, events: Sequence[Event]) -> bool:
    """Return whether calls of a table only run, so that its card may wait for the last.

    Slack takes about one update a second, and a table of 99 calls would use them up.
    The card is drawn again when the last call has ended, and for the first call that is
    in doubt; the thread tells of each failure and doubt at once.
    """
    states = {item.state for item in approval.items}
    return (
        is_table(approval)
        and bool(events)
        and not states.isdisjoint({ItemState.AUTHORIZED, ItemState.EXECUTING})
        and ItemState.PENDING not in states
        and all(
            event.name in _PROGRESS or _is_further_doubt(event, approval, events)
            for event in events
        )
    )


def _is_further_doubt(
    event: Event, approval: Approval, events: Sequence[Event]
) -> bool:
    """Return whether a call is in doubt of a card that shows another one in doubt.

    When all calls of a table fail one after the other, each would else be an update.
    """
    own = next((one for one in approval.items if one.id == event.item), None)
    if own is None or event.name is not EventName.ITEM_IN_DOUBT:
        return False
    told_now = {one.item for one in events if one.name is EventName.ITEM_IN_DOUBT}
    # Strictly earlier: the record may hold a later doubt whose event was not read yet,
    # and each of the two would wait for the other.
    return any(
        one.state is _IN_DOUBT
        and one.id not in told_now
        and one.changed_at_ms < own.changed_at_ms
        for one in approval.items
    )


def mention_newly_needed(
    entry: QueueEntry, approval: Approval, place: CardPlace | None, now_ms: int
) -> None:
    """Queue a reply that mentions roles required since the card was posted."""
    if place is None or approval.is_auto_approved:
        return
    entry.mentioned_roles |= place.mentioned_roles
    # After the expiry nobody can decide, so nobody is mentioned.
    if is_over(approval, now_ms):
        return
    # Messages in the queue count as well: a second redraw before they are posted would
    # mention the same people twice.
    known = entry.mentioned_roles.union(
        *(queued.mentioned_roles for queued in entry.messages)
    )
    others = frozenset(mentions_for(approval, but=known).roles)
    if others and entry.place is not None:
        note = newly_needed(approval, but=known)
        queued = QueuedMessage(note, "", *entry.place, Urgency.NEEDS_PEOPLE, others)
        entry.messages.append(queued)


def _escalated(
    event: Event, approval: Approval, place: tuple[str, str] | None
) -> list[QueuedMessage]:
    """Notify the escalation channels first, then list the results under the card."""
    if approval.state is not ApprovalState.OPEN:
        return []
    urgency, channels = Urgency.NEEDS_PEOPLE, approval.waiting.channels
    notification = channel_escalation(approval, place[0] if place else "")
    # Only the last message carries the event, so it is acknowledged after all of them.
    # A crash before that posts all of them again.
    queued = [
        QueuedMessage(notification, "", at, None, urgency, escalated_to=at)
        for at in channels
    ]
    if place is None:
        return [*queued[:-1], *(replace(one, seq=event.seq) for one in queued[-1:])]
    message = escalation(approval, {})
    roles = frozenset(mentions_for(approval).roles)
    roles |= frozenset(escalation_mentions(approval).roles)
    last = QueuedMessage(
        message, event.seq, *place, urgency, roles, escalation_of=approval
    )
    return [*queued, last]


def _channel_message(event: Event, command: str, *, is_plain: bool) -> Message:
    if event.name in METRICS_EVENTS:
        return metrics_message(event, has_chart=not is_plain)
    if event.name in SECURITY_EVENTS:
        return security_message(event)
    return freeze_message(event, command=command)


def message_without_card(
    event: Event, *, command: str, is_last: bool, is_plain: bool = False
) -> Message | None:
    """Return the message about a run (in its thread), a freeze or metrics, if any.

    Args:
        event: what happened.
        command: the slash command that it may name.
        is_last: no other event of the run waits.
        is_plain: Slack refused the full message.
    """
    message = _without_card(event, command, is_last=is_last, is_plain=is_plain)
    has_own = event.name in METRICS_EVENTS or event.name is EventName.RUN_FINISHED
    return shortened(message) if message and is_plain and not has_own else message


def _without_card(
    event: Event, command: str, *, is_last: bool, is_plain: bool
) -> Message | None:
    match event.name:
        case EventName.RUN_STARTED if is_last:
            text = "The agent is working on it."
            return Message((section(template("⏳ I am working on it.")),), text)
        case EventName.RUN_FINISHED if "text" in event.data:
            return _last_words(event.data["text"], is_plain=is_plain)
        case EventName.RUN_ASKED | EventName.RUN_UNANSWERED:
            return question_message(event)
        case EventName.RUN_FAILED:
            return run_failed()
        case name if name in POSTED_IN_CHANNEL:
            return _channel_message(event, command, is_plain=is_plain)
        case _:
            return None


def _last_words(text: str, *, is_plain: bool) -> Message:
    # Silence would leave "I am working on it" as the last that people read.
    if not text:
        return no_answer()
    return unshown_answer() if is_plain else agent_answer(text)
