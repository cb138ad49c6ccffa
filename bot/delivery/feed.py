"""Read outbox events and the index of missing cards into the delivery queue.

The store keeps an index of missing cards apart from the outbox. An event that opens a
card is acknowledged when that is posted, or stands in the index: so no card is lost
with its event. Events are read as they come and stay unacknowledged until they are
posted. When the queue is full, events that call people
are still queued. Of the others only the card is updated, unless it is a notification;
their thread replies follow, in order, when there is room.

Memory is bounded. From `MOST_ENTRIES` on a card that is only missing waits in the index
of missing cards, and its event is not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from keyturn.bot.cards.security_messages import FREEZE_EVENTS
from keyturn.bot.delivery.conversation_links import place_named
from keyturn.bot.delivery.event_messages import is_silent
from keyturn.bot.delivery.outbox_queue import OutboxQueue
from keyturn.bot.delivery.queue_entry import NEEDS_PEOPLE
from keyturn.gateway.approvals.events import TROUBLED_RUN, Event, EventName
from keyturn.gateway.store.outbox import Outbox

CAPACITY = 2000
"""Events and messages held in memory; events that call people may exceed it."""

MOST_ENTRIES = 2_000
"""Entries of the queue from which on no further missing card is queued."""

_OF_A_RUN = TROUBLED_RUN | {
    EventName.RUN_FINISHED,
    EventName.RUN_ASKED,
    EventName.RUN_UNANSWERED,
}
_PAGE = 500
_CONSUMER = "publisher"
_BLOCK_MS = 1000


@dataclass(slots=True)
class Feed:
    """The events and the missing cards of one tenant, while one publisher leads.

    Attributes:
        queue: to fill.
        outbox: to read; the holder of the lease owns all unacknowledged events.
        tenant: whose events to read; bots of other tenants have readers of their own.
        missing: returns up to so many approvals whose card is missing or outdated.
        mark_missed: lists those as missing of which no event will tell.
        mark_missing: lists these as missing.
        team: the workspace.
    """

    queue: OutboxQueue
    outbox: Outbox
    tenant: str
    missing: Callable[[int], Awaitable[Sequence[str]]]
    mark_missed: Callable[[], Awaitable[object]]
    mark_missing: Callable[..., Awaitable[object]]
    team: str = ""
    _resume_from: str = field(default="", init=False)
    _corrupt: int = field(default=0, init=False)

    async def start(self) -> None:
        """Queue what the previous publisher read and did not acknowledge."""
        # Before this reader is known: cut off in between, the next start looks again.
        if not await self.outbox.is_known():
            await self.mark_missed()
        await self.outbox.prepare()
        await self._queue_outdated()
        # Pending entries of every consumer in the group: we hold the lease, so their
        # consumers have lost it.
        after = "0-0"
        while after:
            page, after = await self.outbox.left(_CONSUMER, start=after, limit=_PAGE)
            await self._take_up(page)

    async def read_new(self) -> bool:
        """Queue new and deferred events; return whether any was new.

        Waits up to a second for a new event.
        """
        await self._catch_up()
        # There are deferred events and room for them, so do not block for a second.
        block_ms = 1 if self._resume_from and self._free() else _BLOCK_MS
        # Deferred events first (`_catch_up`), so that the replies of one entry keep
        # their order.
        page = await self.outbox.take(_CONSUMER, block_ms=block_ms, limit=_PAGE)
        await self._take_up(page)
        await self._queue_outdated()
        return bool(page)

    async def _queue_outdated(self) -> None:
        if self._is_full():
            return
        # The index also lists cards that are queued already. A limit above the queue's
        # length makes sure that the page contains some that are not.
        for approval in await self.missing(len(self.queue) + _PAGE):
            self.queue.mark_outdated(approval)

    async def _take_up(self, page: Sequence[Event]) -> None:
        free, done, missing = self._free(), list[str](), list[str]()
        if self.outbox.corrupt > self._corrupt:
            # One that cannot be read may have opened a card, and is gone.
            await self.mark_missed()
            self._corrupt = self.outbox.corrupt
        for event in page:
            # Somebody else may have written another tenant's event here, so this
            # acknowledgement does not affect it.
            if event.tenant != self.tenant or is_silent(event):
                done.append(event.seq)
            elif _opens_a_card(event) and self._is_full():
                missing.append(event.approval)
                done.append(event.seq)
            elif _is_urgent(event):
                self.queue.add(_addressed(event, self.team))
            # Once one event is deferred, all later ones of this kind are, too, or the
            # replies of an entry would be posted out of order.
            elif self._resume_from or free <= 0:
                # Only the first id is kept: the events stay unacknowledged in the
                # stream and are read again from there.
                self._resume_from = self._resume_from or event.seq
                # Nobody decides on a notification, so its card waits with its event:
                # drawn now, it would be posted like a card that asks people.
                if event.approval and not event.is_auto_approved:
                    self.queue.redraw(event.approval)
            else:
                self.queue.add(_addressed(event, self.team))
                free -= 1
        # In this order: after a crash in between, a card is listed and has its event.
        await self.mark_missing(*missing)
        await self.outbox.done(*done)

    async def _catch_up(self) -> None:
        """Queue deferred events, in order, as far as there is room."""
        free = self._free()
        while self._resume_from and free > 0:
            page, after = await self.outbox.left(
                _CONSUMER, start=self._resume_from, limit=min(free, _PAGE)
            )
            for event in page:
                # Urgent events were queued when they were first read; queued again,
                # they would be posted twice.
                if not _is_urgent(event):
                    self.queue.add(_addressed(event, self.team))
            free -= len(page)
            self._resume_from = after

    def _free(self) -> int:
        return CAPACITY - self.queue.backlog()

    def _is_full(self) -> bool:
        return len(self.queue) >= MOST_ENTRIES


def _addressed(event: Event, team: str) -> Event:
    """Return an event of a run with where it was asked for, if only its name says so.

    A store that was emptied does not know it any more, and "I am working on it" would
    be the last that people read there.
    """
    is_lost = event.name in _OF_A_RUN and not event.data.get("channel")
    place = place_named(event.thread, team) if is_lost else None
    if place is None:
        return event
    channel, thread_ts = place
    data = {**event.data, "channel": channel, "thread_ts": thread_ts}
    return event.with_(channel=channel, data=data)


def _is_urgent(event: Event) -> bool:
    """Return whether an event calls people."""
    if event.name is EventName.APPROVAL_OPENED:
        return _opens_a_card(event)
    return event.name in NEEDS_PEOPLE or event.name in FREEZE_EVENTS


def _opens_a_card(event: Event) -> bool:
    """Return whether an event opens a card that people decide on."""
    return event.name is EventName.APPROVAL_OPENED and not event.is_auto_approved
