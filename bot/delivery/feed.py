"""Feed the queue from the outbox, and from the list of cards that are missing.

Which cards are missing is kept in the store, apart from the outbox: no card waits for
an event to be read, and none is lost with one. Events are read at once, all of them,
and stay unacknowledged until they are said. There may be more of them than fit into
memory. Those that call people are then taken up all the same; of the others the card
is brought up to date, and their lines follow, in order, when there is room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from twokey.bot.cards.freeze_messages import FREEZE_EVENTS
from twokey.bot.delivery.lines import is_silent
from twokey.bot.delivery.outbox_queue import NEEDS_PEOPLE, OutboxQueue
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.store.outbox import Outbox

CAPACITY = 2000
"""Events and lines that are held in memory; those that call people come on top."""

_PAGE = 500
_CONSUMER = "publisher"
_BLOCK_MS = 1000


@dataclass(slots=True)
class Feed:
    """The events and the missing cards of one tenant, while one publisher leads.

    Attributes:
        queue: where they go.
        outbox: what is read; under the lease all that is not acknowledged is ours.
        tenant: whose events they are; those of others are left to their own bots.
        missing: returns approvals whose card is missing or old, so many at most.
    """

    queue: OutboxQueue
    outbox: Outbox
    tenant: str
    missing: Callable[[int], Awaitable[Sequence[str]]]
    _resume_from: str = field(default="", init=False)

    async def start(self) -> None:
        """Take up what the publisher before took and did not acknowledge."""
        await self.outbox.prepare()
        await self._miss()
        # All that any consumer of this group took and did not acknowledge. We hold the
        # lease, so who took it before has lost it.
        after = "0-0"
        while after:
            page, after = await self.outbox.left(_CONSUMER, start=after, limit=_PAGE)
            await self._take_up(page)

    async def read_new(self) -> bool:
        """Take up what is new, and what had to wait; say whether anything was new.

        Waits a second at most for something new.
        """
        await self._catch_up()
        # There is more to catch up on and room for it, so do not wait a second for
        # something new.
        block_ms = 1 if self._resume_from and self._free() else _BLOCK_MS
        # Old events first (`_catch_up`), so that lines of one topic keep their order
        # where both are taken up in one turn.
        page = await self.outbox.take(_CONSUMER, block_ms=block_ms, limit=_PAGE)
        await self._take_up(page)
        await self._miss()
        return bool(page)

    async def _miss(self) -> None:
        # Those on the queue are among them, so that the others are found in any case.
        for approval in await self.missing(len(self.queue) + _PAGE):
            self.queue.miss(approval)

    async def _take_up(self, page: Sequence[Event]) -> None:
        free, done = self._free(), list[str]()
        for event in page:
            # Another tenant of the same shard has a reader of its own, so this
            # acknowledgement takes nothing away from it.
            if event.tenant != self.tenant or is_silent(event):
                done.append(event.seq)
            elif _is_urgent(event):
                self.queue.add(event)
            # Once one event had to wait, all later ones of this kind wait too, or a
            # topic's lines would be said out of order.
            elif self._resume_from or free <= 0:
                # Only the first place is kept: the events stay unacknowledged in the
                # stream and are read from there when there is room.
                self._resume_from = self._resume_from or event.seq
                if event.approval:
                    self.queue.redraw(event.approval)
            else:
                self.queue.add(event)
                free -= 1
        await self.outbox.done(*done)

    async def _catch_up(self) -> None:
        """Take up, in order, events that had to wait for room."""
        free = self._free()
        while self._resume_from and free > 0:
            page, after = await self.outbox.left(
                _CONSUMER, start=self._resume_from, limit=min(free, _PAGE)
            )
            for event in page:
                # Urgent ones were taken up when they were read first; taking them again
                # would say them twice.
                if not _is_urgent(event):
                    self.queue.add(event)
            free -= len(page)
            self._resume_from = after

    def _free(self) -> int:
        return CAPACITY - self.queue.unsaid()


def _is_urgent(event: Event) -> bool:
    """Return whether an event calls people."""
    if event.name is EventName.APPROVAL_OPENED:
        return not event.is_unasked
    return event.name in NEEDS_PEOPLE or event.name in FREEZE_EVENTS
