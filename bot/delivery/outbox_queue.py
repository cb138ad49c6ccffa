"""Priority queue, in memory, of cards and messages to post to Slack.

All events about one approval share an entry: one call updates the card to the newest
state, however many events arrived, and thread replies follow in order. So do events
about one thread of an agent. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from keyturn.bot.cards.security_messages import FREEZE_EVENTS, scope_of
from keyturn.bot.delivery.queue_entry import NEEDS_PEOPLE, QueueEntry, Rank
from keyturn.gateway.approvals.events import Event, EventName

NOTIFICATIONS_AT_ONCE = 5
"""Notifications of a channel that may wait; later ones share one summary message."""


class OutboxQueue:
    """All entries of one tenant, in the order in which they were queued.

    Args:
        clock: seconds, never going backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, QueueEntry] = {}
        self._numbers = count(1)
        self._summaries: dict[str, QueueEntry] = {}
        # Notifications with a message of their own, by channel.
        self._notifications: dict[str, dict[str, QueueEntry]] = {}

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._entries)

    def backlog(self) -> int:
        """Count the events and messages that wait, without the cards themselves."""
        return sum(len(entry.events) + len(entry.messages) for entry in self)

    def waiting(self) -> list[tuple[Rank, QueueEntry]]:
        """Return the entries that no task works on, the most urgent one first."""
        # Each rank has the number of its entry, so entries are never compared.
        return sorted((entry.rank, entry) for entry in self if not entry.is_busy)

    def __iter__(self) -> Iterator[QueueEntry]:
        """Go through the entries, oldest first."""
        return iter(self._entries.values())

    def add(self, event: Event) -> None:
        """Queue an event; the card of its approval becomes due."""
        if event.name in NEEDS_PEOPLE:
            self._summaries.pop(event.approval, None)  # needs a card of its own
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
        # After a restart the event may come again although the card is posted; a known
        # place shows that it is no new card.
        if event.name is EventName.APPROVAL_OPENED and entry.place is None:
            entry.is_new, entry.channel_of_card = True, event.channel
        entry.events.append(event)

    def redraw(self, approval: str) -> None:
        """Make a card due again: what it shows is outdated."""
        self._wanted(QueueEntry(approval, approval))

    def hand_over(self, entry: QueueEntry, card: str) -> None:
        """Move the events of an approval to the entry of the card that it shares."""
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
            entry.since, entry.number = self._clock(), next(self._numbers)
        # Counted: an event while Slack updates the card makes it due again afterwards.
        entry.wanted += 1
        entry.copy_due = None  # the card comes first
        entry.may_have_url = True
        # A new event may end a wait for the rate limit, but not the backoff after a
        # failure: a busy approval would otherwise retry without a pause in an outage.
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
    return is_opened and not event.is_covered  # such a one gets no message at all


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
