"""Deliver the outbox of one tenant to Slack, at least once, under a lease.

One publisher per tenant has the lease; others are on standby. A `Feed` reads the outbox
and the index of missing cards into an `OutboxQueue`, a `Scheduler` runs the queue, and
an event is acknowledged after all its messages are posted. The next publisher reads
unacknowledged events again, so a crash, a restart or an outage of Slack loses nothing.
A message may then be posted twice, but a card has one registered copy, and a second one
is deleted.

A publisher that leaves due work undone reports it (`Publisher.problem`), gives up the
lease and starts over, as after a restart.

The store keeps an index of missing cards apart from the outbox. An event that opens a
card is acknowledged when the card is posted or is in the index: so no card is lost with
its event. When the queue is full, events that call people are still queued. For other
events only the card is updated, unless it is a notification; their thread replies
follow, in order, when there is room. Memory is bounded: if the queue has `MOST_ENTRIES`
entries, a missing card waits in the index, and its event is not kept.

A pending call may need more or fewer reviewers because of other calls: they count in
the same windows of the policy. Every change is an event in the outbox, so the publisher
checks for outdated cards after new events. A card authorizes nothing: the current
policy decides each click, so a late redraw is not a security problem.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from keyturn.bot.cards.channel_messages import FREEZE_EVENTS
from keyturn.bot.cards.mentions import copies_for, mentions_for
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery import redacting
from keyturn.bot.delivery.card_publisher import (
    RESERVED,
    CardPublisher,
    CopyUpdater,
    policy_decision_digest,
    with_members,
    with_unreachable,
)
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.delivery.collecting import Collector
from keyturn.bot.delivery.event_messages import is_silent
from keyturn.bot.delivery.metrics_reports import LOOK_S, MetricsReports
from keyturn.bot.delivery.outbox_queue import (
    NEEDS_PEOPLE,
    OutboxQueue,
    QueueEntry,
    Urgency,
)
from keyturn.bot.delivery.queue_sender import QueueSender
from keyturn.bot.delivery.redacting import Redactor
from keyturn.bot.delivery.seeded_defects import SeededDefects
from keyturn.bot.limits import Call, HomeUpdates, Limits
from keyturn.bot.reviewers import Reviewers
from keyturn.bot.web import Identity, Slack
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import LeaseLost, StoreUnavailable, ThreadUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.events.outbox import Outbox
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.missed_cards import mark_missed
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.scripts.fences import holding
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Tasks that run at the same time; the last slot is for new cards."""

STEP_S = 60.0
"""Timeout of one task: enough for several calls of Slack, 10 s each at most."""

_MAX_SLEEP_S = 1.0
_FAILED_S = 5.0


Step = Callable[[QueueEntry], Awaitable[float]]
"""Makes the next call for an entry; returns the seconds until it may be retried."""


@dataclass(slots=True)
class Scheduler:
    """Run the entries of a queue concurrently, by priority, within Slack's rate limits.

    A call takes its token of the rate limit itself. If there is none, the entry names
    the call, and of the entries that wait for one limit only the most urgent is started
    with the next token. Tasks that are not for a new card leave one token of a channel
    and one slot free for it.

    Code that changes an entry sets ``changed`` to wake the scheduler. The done callback
    of a task removes it from ``running`` and sets ``changed`` without an await in
    between. It never sleeps longer than a second, so a missed wake-up only delays it.

    Attributes:
        queue: the pending entries.
        limits: the rate limits.
        step: makes the next call of an entry.
        clock: seconds, monotonic.
        looked_at: time of the last pass over the queue.
    """

    queue: OutboxQueue
    limits: Limits
    step: Step
    clock: Callable[[], float]
    running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    looked_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin now."""
        self.looked_at = self.clock()

    async def run(self) -> None:
        """Start tasks until cancelled; `finish` waits for those that still run."""
        while True:
            # Cleared before reading the queue: a change between reading and the wait
            # must end the wait.
            self.changed.clear()
            await wait_until_set(self.changed, min(_MAX_SLEEP_S, self.start_due()))

    def start_due(self) -> float:
        """Start a task for each due entry; return the seconds until the next is due."""
        now, soonest = self.clock(), _MAX_SLEEP_S
        self.looked_at = now
        begun = {one.delayed_by for one in self.queue if one.is_busy}
        closed = set[Call]()
        for needed in {call for one in self.queue if (call := one.next_call)}:
            if (wait_s := self.limits.wait_s(*needed)) > 0:
                closed.add(needed)
                soonest = min(soonest, wait_s)
        for one in self.queue:
            if one.likely_call in closed:
                one.delayed_by = one.likely_call
        for entry in self.queue.waiting(closed):
            if (due_at := entry.due_at) > now:
                soonest = min(soonest, due_at - now)
                continue
            # Entries come most urgent first: a less urgent one must not overtake the
            # first one without a free slot.
            slots = AT_ONCE if entry.urgency is Urgency.NEW_CARD else AT_ONCE - RESERVED
            if len(self.running) >= slots:
                break
            if call := entry.delayed_by:
                # Otherwise two tasks would count on the same token.
                if call in begun:
                    continue
                begun.add(call)
            self._start(entry)
        return soonest

    def stalled_s(self) -> float:
        """Return for how many seconds entries have waited without a look at them."""
        return self.clock() - self.looked_at if len(self.queue) else 0.0

    async def finish(self, grace_s: float) -> None:
        """Wait for running tasks; cancel those that take longer."""
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=grace_s)
            for task in late:
                task.cancel()

    def _start(self, entry: QueueEntry) -> None:
        entry.is_busy, entry.likely_call = True, None
        task = asyncio.create_task(self._work_on(entry))
        self.running.add(task)
        # A callback and not a `finally` in the task: the body of a task that is
        # cancelled before its first step never runs, and the entry would stay busy.
        task.add_done_callback(partial(self._is_done, entry))

    async def _work_on(self, entry: QueueEntry) -> None:
        # Calls of Slack and the store have separate timeouts. This one bounds the rest,
        # so that one entry cannot occupy one of the four slots for ever.
        async with asyncio.timeout(STEP_S):
            wait_s = await self.step(entry)
        entry.not_before = self.clock() + wait_s if wait_s else 0.0

    def _is_done(self, entry: QueueEntry, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        entry.is_busy = False
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(logger, error, "publisher.step_failed entry=%s", entry.key)
            entry.not_before = self.clock() + _FAILED_S
        self.queue.drop_done(entry)
        self.changed.set()


async def wait_until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set or a timeout passes."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


STALLED_S = 30.0
"""Time that a due call or an unread event may wait before it is a problem."""

_RETRY_S = 1.0
_WATCH_S = 5.0
_CHECKS = 2
_GRACE_S = 5.0
_READ_EVERY_S = 0.05
_REDRAW_EVERY_S = 0.5
_REDRAW_AT_LEAST_S = 15


@dataclass(slots=True)
class _LeaseTerm:
    """State of one publisher during its lease."""

    feed: Feed
    scheduler: Scheduler
    happened: asyncio.Event
    is_over: bool = False


class Publisher:
    """Publisher of one tenant's events.

    Args:
        service: evaluates the cards.
        config: the bot's settings.
        slack: Slack's Web API.
        me: the bot's identity in the workspace.
        users: cached answers of Slack about people.
        home: notified of new events, by the one process that publishes.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        service: ReviewService,
        config: BotConfig,
        slack: Slack,
        me: Identity,
        users: Reviewers,
        home: HomeUpdates,
        *,
        clock: Callable[[], float],
    ) -> None:
        store, reader = service.store, f"slack:{config.tenant}"
        self._service, self._store, self._clock = service, store, clock
        self._users, self._home = users, home
        publisher = CardPublisher(
            slack, Limits(clock), store, config, me, service.standing.is_usual
        )
        self._card_publisher, self._keys = publisher, publisher.keys
        self._outbox = store.outbox(self._keys, reader=reader)
        seeded = SeededDefects(service, publisher, changed=home.changed.set)
        reports = MetricsReports(
            service, config.metrics, tenant=config.tenant, reader=reader
        )
        self._repeated = [
            (seeded.look, LOOK_S),
            (reports.look, LOOK_S),
        ]
        if (kept := config.messages_kept) is not None:
            redactor = Redactor(publisher, service, kept)
            self._repeated.append((redactor.look, redacting.LOOK_S))
        self._term: _LeaseTerm | None = None

    async def _read_card(self, approval: str) -> Loaded | None:
        loaded = await self._service.read_as_of_now(approval)
        return await with_members(self._users, loaded) if loaded else None

    async def problem(self) -> str:
        """Return the delivery that is late, as a sentence; "" if none is.

        A standby reports an unread outbox as well, whichever process has the lease.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        # Both are needed: a leader that hangs may have read the whole outbox, and
        # without a leader nothing is overdue in memory.
        late_s = self._term.scheduler.stalled_s() if self._term else 0.0
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
                # A blocked process publishes nothing, so another one takes it over.
                async with self._store.threads.held_lease(
                    self._keys,
                    self._keys.lease("", self._outbox.reader),
                    ends_blocked=True,
                ) as lease:
                    with holding(lease):
                        await self._lead(stop, lease.lost)
            # Another process has the lease: the normal state of a second bot, so this
            # is no warning.
            except ThreadUnavailable:
                logger.debug("publisher.standby tenant=%s", self._keys.tenant)
            except StoreUnavailable as error:
                logger.warning("publisher.store_unavailable why=%s", error)
                self._home.changed.set()
            except any_failure() as error:  # nothing may end publishing
                log_failure(logger, error, "publisher.failed_and_leads_again")
            await wait_until_set(stop, _RETRY_S)

    async def _lead(self, stop: asyncio.Event, lost: asyncio.Event) -> None:
        term = self._term = self._new_term()
        logger.info("publisher.leading tenant=%s", self._keys.tenant)
        # FIRST_COMPLETED over all of them: a failed loop ends the term as a lost lease
        # does, so that no term goes on with only some of its loops.
        ends = [asyncio.create_task(event.wait()) for event in (stop, lost)]
        work = [
            asyncio.create_task(self._read(term)),
            asyncio.create_task(term.scheduler.run()),
            asyncio.create_task(self._redraw_outdated(term)),
            asyncio.create_task(self._watch(term)),
            *(
                asyncio.create_task(self._repeat(term, look, every_s))
                for look, every_s in self._repeated
            ),
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
        publisher, queue = self._card_publisher, OutboxQueue()
        updater = CardUpdater(
            card_publisher=publisher,
            copies=CopyUpdater(publisher),
            outbox=self._outbox,
            read=self._read_card,
            clock=self._clock,
        )
        sender = QueueSender(updater, Collector(updater, queue, self._service))
        happened = asyncio.Event()

        async def step(entry: QueueEntry) -> float:
            shown = entry.shown
            try:
                return await sender.step(entry)
            finally:
                if entry.shown != shown:
                    # The policy decision may have changed while the card was posted.
                    happened.set()

        feed = Feed(queue, self._outbox, self._store, self._keys)
        scheduler = Scheduler(
            queue, limits=publisher.limits, step=step, clock=self._clock
        )
        return _LeaseTerm(feed, scheduler, happened)

    async def _read(self, term: _LeaseTerm) -> None:
        await term.feed.start()
        # Also at the start: events that the previous publisher had read are not
        # reported again.
        term.happened.set()
        self._home.changed.set()
        while not term.is_over:
            term.scheduler.changed.set()
            # Events of a burst are read together: each reading asks the store twice.
            await asyncio.sleep(_READ_EVERY_S)
            if await term.feed.read_new():
                term.happened.set()
                self._home.changed.set()

    async def _watch(self, term: _LeaseTerm) -> None:
        """Return when the scheduler has stalled, which ends the term."""
        checks = 0
        while checks < _CHECKS and not term.is_over:
            await asyncio.sleep(_WATCH_S)
            late_s = term.scheduler.stalled_s()
            # Two checks in a row: after a pause of the process (SIGSTOP), everything is
            # overdue at the first check and running at the second.
            checks = checks + 1 if late_s > STALLED_S else 0
        logger.error("publisher.stalled tenant=%s", self._keys.tenant)

    async def _redraw_outdated(self, term: _LeaseTerm) -> None:
        """Redraw cards whose policy decision or reviewers changed.

        Also once at the start, for changes that the previous publisher missed.
        """
        returned_for: dict[str, str] = {}
        while not term.is_over:
            # Cleared before the check: an event during the check must cause another
            # one.
            term.happened.clear()
            try:
                for approval in await outdated_cards(
                    self._service, self._card_publisher, self._users, returned_for
                ):
                    term.feed.queue.redraw(approval)
                    term.scheduler.changed.set()
            except StoreUnavailable:
                raise
            except any_failure() as error:  # cards are published without it
                log_failure(logger, error, "publisher.not_reevaluated")
            # One check evaluates up to fifty approvals, so a burst of events must not
            # cause one check each.
            await asyncio.sleep(_REDRAW_EVERY_S)
            # Without an event, too: quiet hours and turns on call end by the clock.
            await wait_until_set(term.happened, _REDRAW_AT_LEAST_S)

    async def _repeat(
        self, term: _LeaseTerm, work: Callable[[], Awaitable[None]], every_s: float
    ) -> None:
        """Do work that cards do not need; cards are published even if it fails."""
        while not term.is_over:
            try:
                await work()
            except (LeaseLost, StoreUnavailable):
                raise
            except any_failure() as error:  # cards are published without it
                log_failure(logger, error, "publisher.work_failed")
            await asyncio.sleep(every_s)


CAPACITY = 2000
"""Events and messages kept in memory; events that call people may exceed it."""

MOST_ENTRIES = 2_000
"""Number of entries from which on missing cards are not queued."""

_PAGE = 500
_CONSUMER = "publisher"
_BLOCK_MS = 1000


@dataclass(slots=True)
class Feed:
    """The events and the missing cards of one tenant, while one publisher leads.

    Attributes:
        queue: to fill.
        outbox: to read; the holder of the lease owns all unacknowledged events.
        store: lists the missing and outdated cards.
        keys: of the tenant; bots of other tenants have separate readers.
    """

    queue: OutboxQueue
    outbox: Outbox
    store: Store
    keys: Keys
    _resume_from: str = field(default="", init=False)
    _corrupt: int = field(default=0, init=False)

    async def start(self) -> None:
        """Queue the events that the previous publisher read and did not acknowledge."""
        # Before this reader is registered: after a crash in between, the next start
        # repeats the check.
        if not await self.outbox.is_known():
            await mark_missed(self.store, self.keys)
        await self.outbox.prepare()
        await self._queue_outdated()
        # Pending entries of every consumer in the group: this process has the lease, so
        # the other consumers have lost it.
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
        limit = len(self.queue) + _PAGE
        for approval in await self.store.cards.outdated(self.keys, limit):
            self.queue.mark_outdated(approval)

    async def _take_up(self, page: Sequence[Event]) -> None:
        free, done, missing = self._free(), list[str](), list[str]()
        if self.outbox.corrupt > self._corrupt:
            # An unreadable event may have opened a card, and is gone.
            await mark_missed(self.store, self.keys)
            self._corrupt = self.outbox.corrupt
        for event in page:
            # An event of another tenant does not belong in this outbox. Acknowledging
            # it here does not affect that tenant.
            if event.tenant != self.keys.tenant or is_silent(event):
                done.append(event.seq)
            elif _opens_a_card(event) and self._is_full():
                missing.append(event.approval)
                done.append(event.seq)
            elif _is_urgent(event):
                self.queue.add(event)
            # Once one event is deferred, all later ones of this kind are, too, or the
            # replies of an entry would be posted out of order.
            elif self._resume_from or free <= 0:
                # Only the first id is kept: the events stay unacknowledged in the
                # stream and are read again from there.
                self._resume_from = self._resume_from or event.seq
                # A notification needs no decision, so its card waits with its event:
                # drawn now, it would be posted like a card that asks people.
                if event.approval and not event.is_auto_approved:
                    self.queue.redraw(event.approval)
            else:
                self.queue.add(event)
                free -= 1
        # In this order: after a crash in between, a card is listed and has its event.
        await self.store.cards.mark_outdated(self.keys, *missing)
        await self.outbox.done(*done)

    async def _catch_up(self) -> None:
        """Queue deferred events, in order, while there is room."""
        free = self._free()
        while self._resume_from and free > 0:
            page, after = await self.outbox.left(
                _CONSUMER, start=self._resume_from, limit=min(free, _PAGE)
            )
            for event in page:
                # Urgent events were queued when they were first read; queued again,
                # they would be posted twice.
                if not _is_urgent(event):
                    self.queue.add(event)
            free -= len(page)
            self._resume_from = after

    def _free(self) -> int:
        return CAPACITY - self.queue.backlog()

    def _is_full(self) -> bool:
        return len(self.queue) >= MOST_ENTRIES


def _is_urgent(event: Event) -> bool:
    """Return whether an event calls people."""
    if event.name is EventName.APPROVAL_OPENED:
        return _opens_a_card(event)
    return event.name in NEEDS_PEOPLE or event.name in FREEZE_EVENTS


def _opens_a_card(event: Event) -> bool:
    """Return whether an event opens a card that people decide on."""
    return event.name is EventName.APPROVAL_OPENED and not event.is_auto_approved


_LOOKED = ""
"""Key of ``named`` that exists after the first check."""

MOST_REDRAWN = 500
"""Number of cards after which a check leaves out frozen ones that ask nobody new.

A freeze may concern thousands of cards, and new cards need room in the queue. A click
on another card is answered with the freeze, and its next redraw shows it.
"""

_FROZEN = "frozen"
"""Key of ``named`` for the names frozen at that time."""


async def outdated_cards(
    service: ReviewService,
    publisher: CardPublisher,
    users: Reviewers,
    named: MutableMapping[str, str],
) -> list[str]:
    """Return the approvals whose cards have to be redrawn; frozen ones are bounded.

    Args:
        service: evaluates the current policy.
        publisher: has the key that signs the buttons; the first check covers all
            pending approvals and finds cards that were signed with another key.
        users: the people of user groups to ask one by one.
        named: for each approval, the policy decision and the people it was last
            returned for; updated. A card is returned once for these, so that a card
            that Slack refuses is not redrawn for ever.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    found, keys, seal_key = list[str](), publisher.keys, publisher.seal_key
    # A copy, then cleared: an approval that is not outdated now is forgotten, so it is
    # returned again when it becomes outdated once more.
    before = dict(named)
    named.clear()
    now_ms = await service.store.conn.now_ms(keys.outbox)
    named[_LOOKED] = str(now_ms)
    # The first check covers all pending approvals, since no bot may have run before; so
    # does a check after quiet hours or a turn of people on call ended. Other checks
    # cover only the approvals that an event may have changed.
    looked_ms = int(before.get(_LOOKED, "0"))
    named[_FROZEN] = await service.freezes.names()
    is_whole = (
        not looked_ms
        or service.reach_changed_ms(now_ms) > looked_ms
        or named[_FROZEN] != before.get(_FROZEN)
    )
    for loaded in await service.reevaluated(is_whole=is_whole):
        place = await publisher.cards.place(keys, loaded.approval.id)
        # An unposted card will be rendered with the policy decision of that time.
        if place is None:
            continue
        now = (await with_members(users, loaded)).approval
        approval = with_unreachable(now, place.copies)
        decided = policy_decision_digest(approval, seal_key, sent=place.sent)
        unasked = [*mentions_for(approval, but=place.mentioned_roles).roles]
        # A copy without a message was begun by a bot that stopped.
        has_copy = {user for user, it in place.copies.items() if it.ts or it.refused}
        unasked += [one for one in copies_for(approval) if one not in has_copy]
        if place.decision_digest == decided and not unasked:
            continue
        shown = " ".join((decided, *unasked))
        # Once for each decision: a card that Slack refuses would otherwise be redrawn
        # every half second.
        is_new = before.get(approval.id) != shown
        is_frozen = any(item.is_frozen for item in approval.items)
        # Remembered when left out, too, or the next check would redraw it.
        named[approval.id] = shown
        if is_new and is_frozen and not unasked and len(found) >= MOST_REDRAWN:
            continue
        found += [approval.id] if is_new else []
    if found:
        logger.info("cards.evaluated_differently cards=%d", len(found))
    return found
