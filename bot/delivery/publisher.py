"""Consume the outbox: at least once, most urgent first, within rate limits.

One publisher a shard works at a time, under a lease; others wait to take over. A `Feed`
reads the outbox and the index of missing cards into an `OutboxQueue`, a `Scheduler`
does one call after another, and an event is acknowledged when everything about it is
said. What was read and not acknowledged is read again by the next publisher, so a
crash, a restart or an outage of Slack loses nothing. Whatever is said twice after a
crash is said about the same card: the card has one registered copy.

A publisher that leaves work undone for a while says so (`Publisher.problem`) and begins
anew, as after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from twokey.bot.delivery.event_dispatcher import EventDispatcher
from twokey.bot.delivery.feed import Feed
from twokey.bot.delivery.outbox_queue import Call, OutboxQueue, Topic
from twokey.bot.delivery.scheduler import Scheduler, pause
from twokey.gateway.errors import StoreUnavailable, ThreadUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.store.fences import holding
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

STALLED_S = 30.0
"""How long something may wait that could be said, or read, before it is a problem."""

_RETRY_S = 1.0
_WATCH_S = 5.0
_LOOKS = 2
_GRACE_S = 5.0
_REDRAW_EVERY_S = 0.5


@dataclass(slots=True)
class _LeaseTerm:
    """One time of holding the lease."""

    queue: OutboxQueue
    feed: Feed
    scheduler: Scheduler
    happened: asyncio.Event
    is_over: bool = False


class Publisher:
    """Publishes one shard.

    Args:
        store: to read from.
        dispatcher: how to say it, and whose events: each tenant has a place of its own
            in the stream.
        outdated: returns the approvals whose cards show what is so no longer, and
            keeps in its argument what it returned them for.
    """

    def __init__(
        self,
        store: Store,
        dispatcher: EventDispatcher,
        *,
        outdated: Callable[[dict[str, str]], Awaitable[Sequence[str]]],
    ) -> None:
        self._outdated = outdated
        self._store = store
        self._dispatcher = dispatcher
        self._outbox = dispatcher.updater.outbox
        self._keys = dispatcher.updater.keys
        self._tenant = dispatcher.updater.tenant
        self._term: _LeaseTerm | None = None

    async def problem(self) -> str:
        """Return what is not published in time, as a sentence, or "".

        Whoever leads, the oldest event that nobody has read shows that all is well.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        # Two looks, since either can hide the other: a leader that hangs has read the
        # outbox, and without a leader nothing is overdue in memory.
        late_s = self._term.scheduler.overdue_s() if self._term else 0.0
        if late_s > STALLED_S:
            return f"A message for Slack waits for {late_s:.0f} s and nobody sends it."
        unread_s = await self._outbox.unread_ms() / 1000
        if unread_s > STALLED_S:
            return f"No bot has read the outbox for {unread_s:.0f} s."
        return ""

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then finish the calls that are under way."""
        while not stop.is_set():
            try:
                # No agent has the empty name, so this is nobody's thread.
                async with self._store.threads.lease(
                    self._keys, self._tenant, "", self._outbox.reader
                ) as lease:
                    with holding(lease):
                        await self._lead(stop, lease.lost)
            # Another process leads; that is the usual state of a second bot, so it is
            # no warning.
            except ThreadUnavailable:
                logger.debug("publisher.standby shard=%s", self._keys.shard)
            except StoreUnavailable as error:
                logger.warning("publisher.store_unavailable why=%s", error)
            except Exception as error:  # noqa: BLE001 - nothing may end publishing
                log_failure(logger, error, "publisher.failed_and_leads_again")
            await pause(stop, _RETRY_S)

    async def _lead(self, stop: asyncio.Event, lost: asyncio.Event) -> None:
        term = self._term = self._new_term()
        logger.info("publisher.leading shard=%s", self._keys.shard)
        # FIRST_COMPLETED over all of them: a reader that failed ends the term as a
        # lost lease does, so that no term goes on with half of its loops.
        ends = [asyncio.create_task(event.wait()) for event in (stop, lost)]
        work = [
            asyncio.create_task(self._read(term)),
            asyncio.create_task(term.scheduler.run()),
            asyncio.create_task(self._redraw_outdated(term)),
            asyncio.create_task(self._watch(term)),
        ]
        try:
            done, _ = await asyncio.wait(
                [*ends, *work], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            # A cancellation that arrives while a connection to Redis is being opened
            # can get lost in its client, so the loops look for themselves too.
            term.is_over = True
            self._term = None
            for task in (*ends, *work):
                task.cancel()
            # Wait for them to end before the lease is given back: a loop that still
            # writes would do so under a fence that is no longer the newest.
            await asyncio.gather(*ends, *work, return_exceptions=True)
            # Without the lease another publisher may be at work already.
            await term.scheduler.finish(0.0 if lost.is_set() else _GRACE_S)

    def _new_term(self) -> _LeaseTerm:
        dispatcher, clock = self._dispatcher, self._dispatcher.updater.clock
        happened = asyncio.Event()

        async def step(topic: Topic, given: Call | None) -> float:
            shown = topic.shown
            try:
                return await dispatcher.step(topic, given)
            finally:
                if topic.shown != shown:
                    # What a card says may have changed while it was on its way.
                    happened.set()

        queue = OutboxQueue(clock)
        feed = Feed(
            queue,
            self._outbox,
            tenant=self._tenant,
            missing=partial(self._store.cards.undrawn, self._keys, self._tenant),
        )
        scheduler = Scheduler(
            queue,
            next_call=dispatcher.next_call,
            limits=dispatcher.card_publisher.limits,
            step=step,
            clock=clock,
        )
        return _LeaseTerm(queue, feed, scheduler, happened)

    async def _read(self, term: _LeaseTerm) -> None:
        await term.feed.start()
        term.happened.set()
        while not term.is_over:
            term.scheduler.changed.set()
            if await term.feed.read_new():
                term.happened.set()

    async def _watch(self, term: _LeaseTerm) -> None:
        """End a term that leaves work undone: the next one begins anew."""
        looks = 0
        while looks < _LOOKS and not term.is_over:
            await asyncio.sleep(_WATCH_S)
            late_s = term.scheduler.overdue_s()
            # Two looks in a row: after the process was paused (SIGSTOP), everything is
            # overdue at the first one and under way at the second.
            looks = looks + 1 if late_s > STALLED_S else 0
        logger.error("publisher.stalled shard=%s", self._keys.shard)

    async def _redraw_outdated(self, term: _LeaseTerm) -> None:
        """Redraw cards that are judged otherwise since something happened.

        Once at the start: what the publisher before did not come to is found so.
        """
        named: dict[str, str] = {}
        while not term.is_over:
            # Before the look, not after it: what happens during the look has to cause
            # another one.
            term.happened.clear()
            try:
                for approval in await self._outdated(named):
                    term.queue.redraw(approval)
                    term.scheduler.changed.set()
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - cards are published without it
                log_failure(logger, error, "publisher.not_judged_again")
            # One look judges up to fifty approvals, so a burst of events must not cause
            # one look each.
            await asyncio.sleep(_REDRAW_EVERY_S)
            while not (term.is_over or term.happened.is_set()):
                await pause(term.happened, _RETRY_S)
