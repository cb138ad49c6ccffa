"""Priority queue, in memory, of cards and messages to post to Slack.

All events about one approval share an entry: one call updates the card to the newest
state, regardless of the number of events, and thread replies follow in order. Events
about one thread of an agent share an entry, too. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from keyturn.bot.blocks import Message
from keyturn.bot.cards.channel_messages import FREEZE_EVENTS, scope_of
from keyturn.bot.limits import UPDATE, Call
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval

NOTIFICATIONS_AT_ONCE = 5
"""Pending notifications of a channel; later ones share one summary message."""


class OutboxQueue:
    """All entries of one tenant, in queue order."""

    def __init__(self) -> None:
        self._entries: dict[str, QueueEntry] = {}
        self._summaries: dict[str, QueueEntry] = {}
        # Notifications with separate messages, by channel.
        self._notifications: dict[str, dict[str, QueueEntry]] = {}

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._entries)

    def backlog(self) -> int:
        """Count the pending events and messages, without the cards themselves."""
        return sum(len(entry.events) + len(entry.messages) for entry in self)

    def waiting(self, closed: Collection[Call] = ()) -> list[QueueEntry]:
        """Return the entries without a running task, the most urgent one first.

        Of equal entries the oldest is first. Entries that wait for a ``closed`` call
        are left out.
        """
        found = (one for one in self if one.next_call not in closed)
        return sorted(
            (one for one in found if not one.is_busy), key=lambda one: one.rank
        )

    def __iter__(self) -> Iterator[QueueEntry]:
        """Go through the entries, oldest first."""
        return iter(self._entries.values())

    def add(self, event: Event) -> None:
        """Queue an event; the card of its approval becomes due."""
        if event.name in NEEDS_PEOPLE:
            self._summaries.pop(event.approval, None)  # needs a separate card
        fresh = self._summaries.get(event.approval) or _entry(event)
        if fresh.key not in self._entries and _is_notification(event):
            if self._is_crowded(event.channel):
                fresh = QueueEntry(key=f"notifications {event.channel}", approval="")
                fresh.summary_channel = event.channel
            else:
                self._notifications[event.channel][fresh.key] = fresh
        entry = self._wanted(fresh)
        if entry.summary_channel:
            self._summaries[event.approval] = entry
        # After a restart the event may be read again although the card is posted; a
        # known place shows that it is no new card.
        if event.name is EventName.APPROVAL_OPENED and entry.place is None:
            entry.is_new = True
        # Nearly always right. Without it, each card would be prepared only to
        # find that Slack's rate limit is reached.
        if entry.approval and not entry.is_new and event.name not in PROGRESS:
            entry.likely_call = Call(UPDATE)
        entry.events.append(event)

    def redraw(self, approval: str) -> None:
        """Make an outdated card due again."""
        self._wanted(QueueEntry(approval, approval))

    def hand_over(self, entry: QueueEntry, card: str) -> None:
        """Move the events of an approval to the entry of its shared card."""
        shared = self._wanted(QueueEntry(card, card))
        shared.events += entry.events
        entry.events.clear()

    def mark_outdated(self, approval: str) -> None:
        """Queue a card that is missing or may be outdated, unless it is queued."""
        if approval not in self._entries:
            self._wanted(QueueEntry(approval, approval, is_new=True, is_missed=True))

    def _wanted(self, fresh: QueueEntry) -> QueueEntry:
        """Return the queued entry with this key, or queue this one; its card is due."""
        entry = self._entries.get(fresh.key)
        if entry is None:
            entry = self._entries[fresh.key] = fresh
        # Counted: an event while Slack updates the card makes it due again afterwards.
        entry.wanted += 1
        entry.copy_due = None  # the card comes first
        # A new event may need another call than one that waits for its rate limit. The
        # backoff after a failure stays: a busy approval would otherwise retry without a
        # pause in an outage.
        entry.delayed_by = None
        if not entry.failures:
            entry.not_before = 0.0
        return entry

    def drop_done(self, entry: QueueEntry) -> None:
        """Remove an entry that has nothing left to post."""
        # A busy entry may get events while its task runs. If it were removed, the next
        # event would queue a second entry with the same key, and both would post.
        if entry.is_done and not entry.is_busy:
            self._entries.pop(entry.key, None)
            if entry.summary_channel:
                for one in [one for one, at in self._summaries.items() if at is entry]:
                    del self._summaries[one]

    def _is_crowded(self, channel: str) -> bool:
        """Return whether a new notification has to go into a summary message.

        Each post takes a second or more of the channel's rate limit, which cards need.
        """
        waiting = self._notifications[channel] = {
            key: entry
            for key, entry in self._notifications.get(channel, {}).items()
            if self._entries.get(key) is entry and _is_unposted(entry)
        }
        return len(waiting) >= NOTIFICATIONS_AT_ONCE


def _is_notification(event: Event) -> bool:
    is_opened = event.name is EventName.APPROVAL_OPENED and event.is_auto_approved
    return is_opened and not event.is_covered  # a covered call gets no message


def _is_unposted(entry: QueueEntry) -> bool:
    is_opened = bool(entry.events) and entry.events[0].name is EventName.APPROVAL_OPENED
    return entry.place is None and is_opened


def _entry(event: Event) -> QueueEntry:
    """Return a new, empty entry for an event."""
    if event.name in FREEZE_EVENTS:
        # Not by approval: a freeze concerns all approvals of its scope.
        return QueueEntry(key="freeze {} {}".format(*scope_of(event)), approval="")
    key = event.card or f"{event.agent} {event.thread}"
    return QueueEntry(
        key=key, approval=event.card, is_auto_approved=event.is_auto_approved
    )


class Urgency(IntEnum):
    """Priority of an entry or message; the lowest value goes first."""

    NEW_CARD = 0
    NEEDS_PEOPLE = 1
    AGENT_MESSAGE = 2
    CARD_UPDATE = 3
    COPY_UPDATE = 4
    HISTORY = 5


PROGRESS = frozenset(
    {
        EventName.ITEM_EXECUTING,
        EventName.ITEM_EXECUTED,
        EventName.ITEM_FAILED,
        EventName.ITEM_HANDING_OVER,
        EventName.ITEM_HANDED_OVER,
    }
)
"""Events after which the card of a table may wait."""

Places = dict[str, tuple[str, str]]
"""Channel and ts of messages, by the person or outage."""


class CopyCall(NamedTuple):
    """A call about one person's copy of a card; ``channel`` is that of a post."""

    method: str
    channel: str
    user: str
    urgency: Urgency


NEEDS_PEOPLE = frozenset(
    {
        EventName.APPROVAL_DECIDED,
        EventName.CALLS_DECIDED,
        EventName.APPROVAL_REMINDED,
        EventName.APPROVAL_ESCALATED,
        EventName.APPROVAL_STILL_IN_DOUBT,
        EventName.APPROVAL_ASKED,
        EventName.APPROVAL_REPLIED,
        EventName.ITEM_EDITED,
        EventName.ITEM_VOTED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_REPORTED,
        EventName.ITEM_REOPENED,
        EventName.ITEM_REPEATED,
    }
)
"""Events after which people have to act."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message for a channel or a thread that waits to be posted.

    Attributes:
        message: what to post; of an escalation it is rendered when it is posted.
        seq: of the event to acknowledge after posting; "" for none.
        channel: id or name.
        thread_ts: the thread; None for the channel itself.
        urgency: its priority.
        mentioned_roles: names of the roles that it asks to decide.
        escalation_of: the escalated approval, in the last message of an escalation;
            it names the channels that could not be notified.
        escalated_to: the channel that this message notifies of an escalation.
        report_key: kept in the store after posting, so that the failed delivery of a
            card is reported once for each key ("waiting" or "over").
        failures: events of failed calls that it reports; all of them are acknowledged
            after posting.
    """

    message: Message
    seq: str
    channel: str
    thread_ts: str | None
    urgency: Urgency = Urgency.HISTORY
    mentioned_roles: frozenset[str] = frozenset()
    escalation_of: Approval | None = None
    escalated_to: str = ""
    report_key: str = ""
    failures: tuple[Event, ...] = ()

    @property
    def seqs(self) -> list[str]:
        """Return the events to acknowledge after posting."""
        told = [event.seq for event in self.failures] or [self.seq]
        return [seq for seq in told if seq]


@dataclass(slots=True)
class QueueEntry:
    """Entry of the queue: pending work on an approval, an agent's thread or a freeze.

    All times are seconds of the queue's clock.

    Attributes:
        key: approval id, agent and thread, or the frozen scope.
        approval: its id; "" for none.
        is_auto_approved: the card is a notification, and comes last.
        summary_channel: where one message summarises many notifications; "" for none.
        events: read and not acknowledged, oldest first.
        messages: to post after the card, oldest first.
        place: channel and ts of the card; None before it is known.
        copies: channel and ts of each person's copy of the card.
        copy_due: the next call for a copy; None: the card comes first.
        just_sent: people who got their copy since the last events were reported; they
            need no other message about these.
        unsent: people whose copy was not sent, so no search for it is needed; "" for
            the card itself.
        begun_in: the channel of a begun post of the card; "" for none.
        mentioned_roles: names of the roles that were mentioned on the card or under it.
        wanted: number of changes so far; the card is due while it differs from
            ``shown``.
        shown: number of changes that the card shows.
        may_wait: its calls only run, and a posted card is drawn at their end.
        not_before: earliest time of the next attempt.
        delayed_by: the call that waits for its rate limit; None for none.
        likely_call: the call that its next task probably makes; None if unknown.
        card_at: earliest time of the next attempt to post or update the card; its
            messages need not wait for that.
        refusals: of the card by Slack, in a row.
        refused: channel and error of the card's first refusal, while the fallback
            channel is tried.
        is_busy: a task works on it.
        failures: of any kind, in a row; sets the backoff.
        errors: consecutive failures of Keyturn's code.
        failing_since: time of the first call in a row to which Slack did not respond;
            None for none.
        channel: the channel to use instead; "" for none.
        is_plain: the full card or digest failed, in Slack or locally, so a plain one is
            posted.
        is_missed: the store lists the card as missing or outdated.
        escalation_results: channels that were notified of an escalation, with Slack's
            error, or "" for success.
        is_new: this process has no sign that the card is posted.
    """

    key: str
    approval: str
    is_auto_approved: bool = False
    summary_channel: str = ""
    events: list[Event] = field(default_factory=list[Event])
    messages: list[QueuedMessage] = field(default_factory=list[QueuedMessage])
    place: tuple[str, str] | None = None
    copies: Places = field(default_factory=Places)
    copy_due: CopyCall | None = None
    just_sent: set[str] = field(default_factory=set[str])
    unsent: set[str] = field(default_factory=set[str])
    begun_in: str = ""
    mentioned_roles: frozenset[str] = frozenset()
    wanted: int = 0
    shown: int = 0
    may_wait: bool = False
    not_before: float = 0.0
    delayed_by: Call | None = None
    likely_call: Call | None = None
    card_at: float = 0.0
    refusals: int = 0
    refused: tuple[str, str] | None = None
    is_busy: bool = False
    failures: int = 0
    errors: int = 0
    failing_since: float | None = None
    channel: str = ""
    is_plain: bool = False
    is_missed: bool = False
    escalation_results: dict[str, str] = field(default_factory=dict[str, str])
    is_new: bool = False

    @property
    def is_card_due(self) -> bool:
        """Return whether the card may be older than the record."""
        return bool(self.approval) and self.wanted != self.shown

    @property
    def next_call(self) -> Call | None:
        """Return the call whose rate limit has to have room for the next task."""
        return self.delayed_by or self.likely_call

    @property
    def lost_in(self) -> str:
        """Return the channel where the card may be without a known place; "": none."""
        return self.begun_in if self.is_new and "" not in self.unsent else ""

    @property
    def due_at(self) -> float:
        """Return the earliest time of the next call."""
        # Messages do not wait for a card that Slack refuses (`is_card_next`).
        is_held = self.is_card_due and not self.messages
        return max(self.not_before, self.card_at) if is_held else self.not_before

    def is_card_next(self, now: float) -> bool:
        """Return whether the next call is for the card, not for a message."""
        return self.is_card_due and (self.card_at <= now or not self.messages)

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to post."""
        return not (self.events or self.messages or self.is_card_due)

    @property
    def urgency(self) -> Urgency:
        """Return the priority of the next call."""
        if self.summary_channel:
            return Urgency.HISTORY
        if not self.approval:
            return Urgency.AGENT_MESSAGE
        if not self.is_card_due:
            return self.messages[0].urgency if self.messages else Urgency.HISTORY
        if self.copy_due is not None:
            return self.copy_due.urgency
        if self.is_new and not self.is_auto_approved:
            return Urgency.NEW_CARD
        needs_people = any(event.name in NEEDS_PEOPLE for event in self.events)
        calm = Urgency.HISTORY if self.is_auto_approved else Urgency.CARD_UPDATE
        return Urgency.NEEDS_PEOPLE if needs_people else calm

    @property
    def rank(self) -> tuple[Urgency, int]:
        """Return where the entry belongs among others; the lowest goes first."""
        # A card that Slack keeps refusing goes behind its equals, so that it does not
        # use up the rate limit of cards that Slack would accept.
        return self.urgency, self.refusals
