"""Convert outbox events to Slack messages: thread replies or channel messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from keyturn.bot.blocks import Message, section
from keyturn.bot.cards.channel_messages import (
    FREEZE_EVENTS,
    agent_answer,
    freeze_message,
    no_answer,
    question_message,
    run_announced,
    run_failed,
    run_state,
    security_message,
    shortened,
)
from keyturn.bot.cards.history import item_of, thread_note
from keyturn.bot.cards.inquiries import asked_note, replied_note, requester_ref
from keyturn.bot.cards.mentions import (
    copies_called,
    copies_for,
)
from keyturn.bot.cards.metrics_messages import METRICS_EVENTS, metrics_message
from keyturn.bot.cards.refs import who
from keyturn.bot.cards.reminders import (
    Call,
    channel_escalation,
    escalation,
    newly_needed,
    personal_reply,
    reminder,
    snooze_over,
    still_in_doubt,
    waits_again,
    with_reviewers,
)
from keyturn.bot.cards.special_cards import (
    check_answered_note,
    check_asked_note,
    report_line,
)
from keyturn.bot.delivery.card_publisher import RESERVED, CardPublisher
from keyturn.bot.delivery.outbox_queue import QueuedMessage, QueueEntry, Urgency
from keyturn.bot.limits import POST, UPDATE
from keyturn.bot.text import template
from keyturn.bot.web import NEVER_UPDATED, SlackRefused
from keyturn.gateway.approvals.events import TROUBLED_RUN, Event, EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import is_over
from keyturn.gateway.approvals.waiting_changes import (
    REPLY_TS,
    SNOOZED_BY,
    answered_by,
)
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.reviewers.cards import CardPlace

logger = logging.getLogger(__name__)

_ONLY_AFTER_FAILURE = frozenset(
    {EventName.RUN_RESUMED, EventName.RUN_RETRIED, EventName.RUN_DROPPED}
)
"""Events that need no message unless the failure of the run was posted."""


def is_about_outage(event: Event) -> bool:
    """Return whether an event belongs in the message of its outage."""
    return event.name in TROUBLED_RUN and bool(event.data.get("outage"))


async def show(card_publisher: CardPublisher, entry: QueueEntry) -> bool:
    """Post or update the message of an outage for an entry's first event.

    There is one message per outage of a run, in its thread. The store keeps its channel
    and ts, so another bot updates the same message. It is posted with a text that stays
    true, and updated with the run's state after it is registered: a copy that could not
    be registered (a lost response, a crash) is never updated again.

    Returns:
        Whether the event can be acknowledged.

    Raises:
        RateLimitDelay: nothing was sent.
        SlackError: without a response, Slack may have posted it.
    """
    event, outage = entry.events[0], entry.events[0].data["outage"]
    # A state that a later event replaces needs no message: only the newest is shown.
    newer = (one for one in entry.events[1:] if is_about_outage(one))
    if any(one.data["outage"] == outage for one in newer):
        return True
    place, channel = await card_publisher.place(outage), event.data.get("channel", "")
    # The continuation of a run is news only if its failure was posted.
    if not channel or (place is None and event.name in _ONLY_AFTER_FAILURE):
        return True
    if place is None:
        card_publisher.take(POST, channel, RESERVED)
        thread_ts = event.data.get("thread_ts") or None
        first = run_announced(event)
        # Posted in two steps: first a text that stays true, then its update. If the
        # response to the post is lost, an unregistered copy stays in Slack, and its
        # text must not become false.
        at = await card_publisher.post(channel, first, thread_ts=thread_ts)
        await card_publisher.register(outage, *at)
        return False
    message = run_state(event, key=card_publisher.seal_key, team=card_publisher.me.team)
    card_publisher.take(UPDATE)
    try:
        await card_publisher.update(place.channel, place.ts, message)
    except SlackRefused as error:
        if error.error not in NEVER_UPDATED:
            raise
        logger.warning("run.message_gone outage=%s why=%s", outage, error.error)
        await card_publisher.cards.forget_place(card_publisher.keys, outage)
        return event.name in _ONLY_AFTER_FAILURE
    return True


INQUIRY_EVENTS = frozenset({EventName.APPROVAL_ASKED, EventName.APPROVAL_REPLIED})


def inquiry_messages(
    event: Event,
    approval: Approval,
    place: tuple[str, str] | None,
    copies: Mapping[str, tuple[str, str]],
) -> list[QueuedMessage]:
    """Return the replies about a question or about the first reply to it.

    Askers get a reply under their copy of the card, or else in the thread.
    """
    requester, urgency = requester_ref(approval), Urgency.NEEDS_PEOPLE
    # Decided before this was posted: no one needs to ask or wait any more.
    is_open = approval.state is ApprovalState.OPEN
    if place is None or requester is None or not is_open:
        return []
    if event.name is EventName.APPROVAL_ASKED:
        note = asked_note(event, approval, requester)
        return [QueuedMessage(note, event.seq, *place, urgency)]
    questions = answered_by(approval.inquiries, event.data.get(REPLY_TS, ""))
    askers = {one.by.user: who(one.by) for one in questions}
    if not askers:
        return []  # more words to an answered question: the card shows them
    in_thread = [ref for user, ref in askers.items() if user not in copies]
    # First, since only the last message carries the event: it is acknowledged after
    # all of them.
    told = [
        QueuedMessage(replied_note(approval, [ref]), "", *copies[user], urgency)
        for user, ref in askers.items()
        if user in copies
    ]
    note = replied_note(approval, in_thread)
    return [*told, QueuedMessage(note, event.seq, *place, urgency)]


POSTED_IN_CHANNEL = FREEZE_EVENTS | METRICS_EVENTS | {EventName.SECURITY_DETECTED}
"""Events that are posted in a channel, not in the thread of a card or a run."""

_IN_DOUBT = ItemState.IN_DOUBT
_UNDER_NOTIFICATIONS = frozenset(
    {
        EventName.APPROVAL_REPORTED,
        EventName.APPROVAL_STILL_IN_DOUBT,
        EventName.ITEM_CHECKED,
        EventName.ITEM_CHECK_ASKED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_RECONCILED,
        EventName.ITEM_REPORTED,
    }
)
"""Events that get a thread reply under a notification."""


def is_silent(event: Event) -> bool:
    """Return whether an event changes no card and causes no message."""
    if event.card or is_about_outage(event):
        return False
    if event.name is EventName.AGENT_FLOODS:
        return False
    return message_without_card(event, command="", is_last=True) is None


def messages_of(
    event: Event,
    approval: Approval,
    place: tuple[str, str] | None,
    copies: Mapping[str, tuple[str, str]],
) -> list[QueuedMessage]:
    """Return the messages for an event: thread replies, and channel escalations.

    Without a card there is no thread, so only other channels get a message. People with
    a copy get their mention in its thread instead.
    """
    if event.name in INQUIRY_EVENTS:
        return inquiry_messages(event, approval, place, copies)
    if event.name is EventName.APPROVAL_ESCALATED:
        return _escalated(event, approval, place, copies)
    is_shown = approval.is_auto_approved and event.name not in _UNDER_NOTIFICATIONS
    if place is None or is_shown:
        return []  # the notification itself shows it
    if call := _call(event, approval):
        urgency = Urgency.NEEDS_PEOPLE
        queued = QueuedMessage(call.message, event.seq, *place, urgency, call.roles)
        return [*_to_copies(event, approval, copies, call), queued]
    note, urgency = _note(event, approval), Urgency.HISTORY
    if event.name is EventName.APPROVAL_REPORTED:
        note, urgency = report_line(event), Urgency.CARD_UPDATE
    return [QueuedMessage(note, event.seq, *place, urgency)] if note else []


def _to_copies(
    event: Event,
    approval: Approval,
    copies: Mapping[str, tuple[str, str]],
    call: Call,
) -> list[QueuedMessage]:
    """Return the replies for people with a copy.

    They come first, since only the last message of an event carries it: it is
    acknowledged after all of them.
    """
    if call.sentence is None:
        return []
    taken = approval.acknowledged
    # A person who said "I'm on it" gets no reminder.
    is_reminder = event.name is EventName.APPROVAL_REMINDED
    spared = taken.by.user if taken and is_reminder else ""
    is_escalated = event.name is EventName.APPROVAL_ESCALATED
    whom = copies_called(approval) if is_escalated else copies_for(approval)
    urgency = Urgency.NEEDS_PEOPLE
    return [
        QueuedMessage(
            personal_reply(approval, call.sentence, user), "", *copies[user], urgency
        )
        for user in whom
        if user in copies and user != spared
    ]


def _call(event: Event, approval: Approval) -> Call | None:
    """Return the reply about an event that calls people; None for another event."""
    # The approval may have been decided while the event was queued.
    is_open = approval.state is ApprovalState.OPEN
    match event.name:
        case EventName.ITEM_REOPENED if is_open:
            return waits_again(approval, event.reason)
        case EventName.APPROVAL_STILL_IN_DOUBT:
            return still_in_doubt(approval)
        case EventName.APPROVAL_REMINDED if is_open:
            return reminder(approval)
        case EventName.APPROVAL_RELEASED if is_open and SNOOZED_BY in event.data:
            return snooze_over(approval, event.data[SNOOZED_BY])
        case EventName.ITEM_EDITED | EventName.ITEM_IN_DOUBT:
            item, note = _item_now_waiting(event, approval), _note(event, approval)
            return with_reviewers(note, approval, item) if item and note else None
        case _:
            return None


def _note(event: Event, approval: Approval) -> Message | None:
    """Return the reply about an event that calls nobody; None if it needs none."""
    if event.name in {EventName.ITEM_CHECK_ASKED, EventName.ITEM_CHECKED}:
        return _of_spot_check(event, approval)
    # The card of a standing approval is complete, and there may be many uses.
    return None if approval.is_standing else thread_note(event, approval)


def _of_spot_check(event: Event, approval: Approval) -> Message | None:
    item = item_of(event, approval)
    if item is None or item.spot_check is None:
        return None
    if event.name is EventName.ITEM_CHECKED:
        return check_answered_note(approval, item, item.spot_check)
    # Answered before this was posted: the question is obsolete.
    return check_asked_note(approval, item) if item.is_to_be_checked else None


def _item_now_waiting(event: Event, approval: Approval) -> Item | None:
    """Return the call if this event made it wait for people; None otherwise."""
    item = item_of(event, approval)
    # Another edit replaced this version since. Its own event mentions the people.
    if item is None or event.version != approval.version:
        return None
    is_edited = event.name is EventName.ITEM_EDITED and item.is_pending
    is_doubt = event.name is EventName.ITEM_IN_DOUBT and item.state is _IN_DOUBT
    return item if is_edited or is_doubt else None


def mention_newly_needed(
    entry: QueueEntry, approval: Approval, place: CardPlace | None, now_ms: int
) -> None:
    """Queue a reply that mentions roles required since the card was posted."""
    if place is None or approval.is_auto_approved:
        return
    entry.mentioned_roles |= place.mentioned_roles
    # After the expiry people cannot decide, so they are not mentioned.
    if is_over(approval, now_ms):
        return
    # Messages in the queue count as well: a second redraw before they are posted would
    # mention the same people twice.
    known = entry.mentioned_roles.union(
        *(queued.mentioned_roles for queued in entry.messages)
    )
    call = newly_needed(approval, but=known)
    if call.roles and entry.place is not None:
        urgency = Urgency.NEEDS_PEOPLE
        queued = QueuedMessage(call.message, "", *entry.place, urgency, call.roles)
        entry.messages.append(queued)


def _escalated(
    event: Event,
    approval: Approval,
    place: tuple[str, str] | None,
    copies: Mapping[str, tuple[str, str]],
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
    call = escalation(approval, {})
    last = QueuedMessage(
        call.message, event.seq, *place, urgency, call.roles, escalation_of=approval
    )
    return [*_to_copies(event, approval, copies, call), *queued, last]


def message_without_card(
    event: Event, *, command: str, is_last: bool, is_plain: bool = False
) -> Message | None:
    """Return the message about a run (in its thread), a freeze or metrics, if any.

    Args:
        event: the event.
        command: the slash command to mention.
        is_last: no other event of the run is queued.
        is_plain: Slack refused the full message.
    """
    message = _without_card(event, command, is_last=is_last, is_plain=is_plain)
    is_short = is_plain and event.name not in METRICS_EVENTS
    return shortened(message) if message and is_short else message


def _without_card(
    event: Event, command: str, *, is_last: bool, is_plain: bool
) -> Message | None:
    message: Message | None = None
    match event.name:
        case EventName.RUN_STARTED if is_last:
            text = "The agent is working on it."
            message = Message((section(template("⏳ I am working on it.")),), text)
        case EventName.RUN_FINISHED if "text" in event.data:
            # Without a message "I am working on it" would be the last in the thread.
            text = event.data["text"]
            message = agent_answer(text) if text else no_answer()
        case EventName.RUN_ASKED | EventName.RUN_UNANSWERED:
            message = question_message(event)
        case EventName.RUN_FAILED:
            message = run_failed()
        case name if name in METRICS_EVENTS:
            message = metrics_message(event, has_chart=not is_plain)
        case EventName.SECURITY_DETECTED:
            message = security_message(event)
        case name if name in FREEZE_EVENTS - {EventName.AGENT_FLOODS}:
            message = freeze_message(event, command=command)
        case _:
            pass
    return message
