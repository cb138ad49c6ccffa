"""Deliver the outbox of one shard to Slack, at least once, under a lease.

One publisher per shard holds the lease; others stand by. A `Feed` reads the outbox and
the index of missing cards into an `OutboxQueue`, a `Scheduler` runs the queue, and an
event is acknowledged after all its messages are posted. The next publisher reads
unacknowledged events again, so a crash, a restart or an outage of Slack loses nothing.
A message may then be posted twice, but a card has one registered copy, and a second one
is deleted.

A publisher that leaves due work undone reports it (`Publisher.problem`), gives up the
lease and starts over, as after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from twokey.bot.clicks_first import Gather, at_once
from twokey.bot.delivery import redacting
from twokey.bot.delivery.feed import Feed
from twokey.bot.delivery.metrics_reports import LOOK_S
from twokey.bot.delivery.outbox_queue import OutboxQueue
from twokey.bot.delivery.queue_entry import Call, QueueEntry
from twokey.bot.delivery.queue_sender import QueueSender
from twokey.bot.delivery.scheduler import Scheduler, wait_until_set
from twokey.gateway.errors import LeaseLost, StoreUnavailable, ThreadUnavailable
from twokey.gateway.failures import log_failure
from twokey.gateway.store.fences import holding
from twokey.gateway.store.missed_cards import mark_missed
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

STALLED_S = 30.0
"""How long a due call or an unread event may wait before it is a problem."""

_RETRY_S = 1.0
_WATCH_S = 5.0
_CHECKS = 2
_GRACE_S = 5.0
_REDRAW_EVERY_S = 0.5
_REDRAW_AT_LEAST_S = 15


@dataclass(slots=True)
class _LeaseTerm:
    """State of one publisher while it holds the lease."""

    queue: OutboxQueue
    feed: Feed
    scheduler: Scheduler
    happened: asyncio.Event
    is_over: bool = False


class Publisher:
    """Publisher of one tenant's events on one shard.

    Args:
        store: to read from.
        dispatcher: makes the calls; names the tenant and its consumer group.
        outdated: returns the approvals whose cards are outdated. Its argument is its
            memory: what it returned each approval for, so as not to return it again.
        report: announces what is due of metrics, and shows seeded defects.
        on_events: called after new events, by the one process that publishes.
        quiet: waits until there is time to publish.
        gather: waits until there is time to read what happened.
        clicked: called for events of what people did in Slack.
        redact: redacts messages whose time is over; None: they stay.
    """

    def __init__(  # noqa: PLR0913 - what a publisher is made of
        self,
        store: Store,
        dispatcher: QueueSender,
        *,
        outdated: Callable[[dict[str, str]], Awaitable[Sequence[str]]],
        report: Callable[[], Awaitable[None]],
        on_events: Callable[[], None] = lambda: None,
        quiet: Callable[[], Awaitable[None]] = at_once,
        gather: Gather = at_once,
        clicked: Callable[[], None] = lambda: None,
        redact: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._redact = redact
        self._quiet = quiet
        self._gather = gather
        self._clicked = clicked
        self._on_events = on_events
        self._outdated = outdated
        self._report = report
        self._store = store
        self._dispatcher = dispatcher
        self._outbox = dispatcher.updater.outbox
        self._keys = dispatcher.updater.keys
        self._tenant = dispatcher.updater.tenant
        self._term: _LeaseTerm | None = None

    @property
    def shard(self) -> str:
        """Return the shard that it publishes."""
        return self._keys.shard

    async def problem(self) -> str:
        """Return what is not delivered in time, as a sentence; "" for nothing.

        A standby reports an unread outbox as well, whichever process holds the lease.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        # Both are needed: a leader that hangs may have read the whole outbox, and
        # without a leader nothing is overdue in memory.
        late_s = self._term.scheduler.overdue_s() if self._term else 0.0
        if late_s > STALLED_S:
            return f"A message for Slack waits for {late_s:.0f} s and nobody sends it."
        unread_s = await self._outbox.unread_ms() / 1000
        if unread_s > STALLED_S:
            return f"No bot has read the outbox for {unread_s:.0f} s."
        return ""

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set; then finish the running calls."""
        while not stop.is_set():
            try:
                # The lease of a thread is used, with an agent name that no agent has.
                async with self._store.threads.lease(
                    self._keys, self._tenant, "", self._outbox.reader
                ) as lease:
                    with holding(lease):
                        await self._lead(stop, lease.lost)
            # Another process holds the lease: the normal state of a second bot, so this
            # is no warning.
            except ThreadUnavailable:
                logger.debug("publisher.standby shard=%s", self._keys.shard)
            except StoreUnavailable as error:
                logger.warning("publisher.store_unavailable why=%s", error)
                self._on_events()  # lists lack what is in this shard, and say so
            except Exception as error:  # noqa: BLE001 - nothing may end publishing
                log_failure(logger, error, "publisher.failed_and_leads_again")
            await wait_until_set(stop, _RETRY_S)

    async def _lead(self, stop: asyncio.Event, lost: asyncio.Event) -> None:
        term = self._term = self._new_term()
        logger.info("publisher.leading shard=%s", self._keys.shard)
        # FIRST_COMPLETED over all of them: a failed loop ends the term as a lost lease
        # does, so that no term goes on with only some of its loops.
        ends = [asyncio.create_task(event.wait()) for event in (stop, lost)]
        work = [
            asyncio.create_task(self._read(term)),
            asyncio.create_task(term.scheduler.run()),
            asyncio.create_task(self._redraw_outdated(term)),
            asyncio.create_task(self._watch(term)),
            asyncio.create_task(self._report_metrics(term)),
            asyncio.create_task(self._redact_old(term)),
        ]
        try:
            done, _ = await asyncio.wait(
                [*ends, *work], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            # The Redis client can swallow a cancellation that arrives while it opens a
            # connection, so the loops check `is_over` as well.
            term.is_over = True
            self._term = None
            for task in (*ends, *work):
                task.cancel()
            # Before the lease is released: a loop that still writes would do so under a
            # fence that is no longer the newest.
            await asyncio.gather(*ends, *work, return_exceptions=True)
            # After a lost lease another publisher may work already, so do not wait.
            await term.scheduler.finish(0.0 if lost.is_set() else _GRACE_S)

    def _new_term(self) -> _LeaseTerm:
        dispatcher, clock = self._dispatcher, self._dispatcher.updater.clock
        happened = asyncio.Event()

        async def step(entry: QueueEntry, given: Call | None) -> float:
            shown = entry.shown
            try:
                return await dispatcher.step(entry, given)
            finally:
                if entry.shown != shown:
                    # The policy decision may have changed while the card was posted.
                    happened.set()

        queue = OutboxQueue(clock)
        dispatcher.collector.begin(queue)
        feed = Feed(
            queue,
            self._outbox,
            tenant=self._tenant,
            missing=partial(self._store.cards.outdated, self._keys, self._tenant),
            mark_missed=partial(mark_missed, self._store, self._keys, self._tenant),
            mark_missing=partial(
                self._store.cards.mark_outdated, self._keys, self._tenant
            ),
            clicked=self._clicked,
            team=dispatcher.card_publisher.team,
        )
        scheduler = Scheduler(
            queue,
            next_call=dispatcher.next_call,
            limits=dispatcher.card_publisher.limits,
            step=step,
            clock=clock,
            quiet=self._quiet,
        )
        return _LeaseTerm(queue, feed, scheduler, happened)

    async def _read(self, term: _LeaseTerm) -> None:
        await term.feed.start()
        # Also at the start: what the previous publisher had read is not told of again.
        term.happened.set()
        self._on_events()
        while not term.is_over:
            term.scheduler.changed.set()
            # Not after each click: what comes meanwhile is read in one go.
            await self._gather(self._outbox.has_new_click)
            if await term.feed.read_new():
                term.happened.set()
                self._on_events()

    async def _watch(self, term: _LeaseTerm) -> None:
        """Return when the scheduler has stalled, which ends the term."""
        checks = 0
        while checks < _CHECKS and not term.is_over:
            await asyncio.sleep(_WATCH_S)
            late_s = term.scheduler.overdue_s()
            # Two checks in a row: after a pause of the process (SIGSTOP), everything is
            # overdue at the first check and running at the second.
            checks = checks + 1 if late_s > STALLED_S else 0
        logger.error("publisher.stalled shard=%s", self._keys.shard)

    async def _redraw_outdated(self, term: _LeaseTerm) -> None:
        """Redraw cards whose policy decision or reviewers changed.

        Also once at the start, for what the previous publisher did not get to.
        """
        returned_for: dict[str, str] = {}
        while not term.is_over:
            # Cleared before the check: an event during the check has to cause another.
            term.happened.clear()
            await self._quiet()
            try:
                for approval in await self._outdated(returned_for):
                    term.queue.redraw(approval)
                    term.scheduler.changed.set()
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - cards are published without it
                log_failure(logger, error, "publisher.not_reevaluated")
            # One check evaluates up to fifty approvals, so a burst of events must not
            # cause one check each.
            await asyncio.sleep(_REDRAW_EVERY_S)
            # Without an event, too: quiet hours and turns on call end by the clock.
            seconds = 0
            while seconds < _REDRAW_AT_LEAST_S and not (
                term.is_over or term.happened.is_set()
            ):
                await wait_until_set(term.happened, 1.0)
                seconds += 1

    async def _redact_old(self, term: _LeaseTerm) -> None:
        """Redact messages whose time is over; cards are published even if it fails."""
        while not term.is_over:
            await asyncio.sleep(redacting.LOOK_S)
            if self._redact is None:
                continue
            await self._quiet()
            try:
                await self._redact()
            except (LeaseLost, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - cards are published without it
                log_failure(logger, error, "publisher.not_redacted")

    async def _report_metrics(self, term: _LeaseTerm) -> None:
        """Announce digests and alerts; cards are published even if that fails."""
        while not term.is_over:
            try:
                await self._report()
            except (LeaseLost, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - cards are published without it
                log_failure(logger, error, "publisher.metrics_not_reported")
            await asyncio.sleep(LOOK_S)
