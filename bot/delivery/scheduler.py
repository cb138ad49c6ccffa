"""Run queued entries concurrently, by priority, within Slack's rate limits.

The scheduler takes a token of the rate limit before it starts a task, in order of
priority, so a short task of low priority cannot take the token that an urgent one waits
for. Tasks that are not for a new card leave one token and one slot free for it.

Code that changes an entry sets ``changed`` to wake the scheduler. The done callback of
a task removes it from ``running`` and sets ``changed`` without an await in between.
The scheduler never sleeps longer than a second, so a missed wake-up only delays it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from twokey.bot.clicks_first import at_once
from twokey.bot.delivery.outbox_queue import OutboxQueue
from twokey.bot.delivery.queue_entry import Call, QueueEntry, Urgency
from twokey.bot.delivery.waiting_entries import LimitedCall
from twokey.bot.limits import POST, Limits
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Tasks that run at the same time; the last slot is for new cards."""

STEP_S = 60.0
"""Timeout of one task: enough for several calls of Slack, 10 s each at most."""

_MAX_SLEEP_S = 1.0
_FAILED_S = 5.0
_RESERVED = 1

Step = Callable[[QueueEntry, Call | None], Awaitable[float]]
"""Makes the next call for an entry; returns the seconds until it may be retried."""


@dataclass(slots=True)
class Scheduler:
    """Run the entries of a queue.

    Attributes:
        queue: the pending entries.
        next_call: returns the call that an entry needs next; None for none.
        limits: the rate limits.
        step: makes that call. It gets the call for which a token was taken, and gives
            the token back if it makes another call or none.
        clock: seconds, never going backwards.
        quiet: waits until there is time for it.
    """

    queue: OutboxQueue
    next_call: Callable[[QueueEntry], Call | None]
    limits: Limits
    step: Step
    clock: Callable[[], float]
    quiet: Callable[[], Awaitable[None]] = at_once
    running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Start tasks until cancelled; `finish` waits for those that still run."""
        while True:
            # Cleared before reading the queue: a change between reading and the wait
            # must end the wait.
            self.changed.clear()
            await self.quiet()
            await wait_until_set(self.changed, min(_MAX_SLEEP_S, self.start_due()))

    def start_due(self) -> float:
        """Start a task for each due entry; return the seconds until the next is due."""
        waiting, now, soonest = self.queue.waiting, self.clock(), _MAX_SLEEP_S
        waiting.begin(now)
        # Until the first without a free slot, and not past it: entries come most urgent
        # first, and that one must not be overtaken by a less urgent one.
        while (entry := waiting.most_urgent()) and self._has_slot(entry.urgency):
            first_for = waiting.take(entry)
            call = self.next_call(entry)
            limited = _limited(entry, call) if call else None
            # Taken before the task starts. If the task took it, two tasks started in
            # one pass could both count on the last token.
            if entry.due_at > now:
                waiting.set_aside(entry, entry.due_at)
            elif limited and (wait_s := self._take(limited)) > 0:
                soonest = min(soonest, wait_s)
                change_at = entry.card_at if entry.card_at > now else 0.0
                waiting.set_aside_for(limited, entry, change_at)
                if limited == first_for:
                    continue  # so does every other one that waits for this call
            else:
                self._start(entry, call)
            if first_for is not None:
                waiting.look_at_next(first_for)
        due_at = waiting.next_at()
        return soonest if due_at is None else min(soonest, max(0.0, due_at - now))

    def overdue_s(self) -> float:
        """Return for how many seconds an entry has been due without being started."""
        now, found_s = self.clock(), 0.0
        free_at: dict[LimitedCall, float] = {}
        for entry in self.queue:
            at = max(entry.since, entry.due_at)
            if entry.is_busy or now - at <= found_s:
                continue
            if (call := self.next_call(entry)) is not None:
                limited = _limited(entry, call)
                if limited not in free_at:
                    free_at[limited] = self.limits.free_at(*call, keep=limited.keep)
                at = max(at, free_at[limited])
            if now - at > found_s and self._has_slot(entry.urgency):
                found_s = now - at
        return found_s

    async def finish(self, grace_s: float) -> None:
        """Wait for running tasks; cancel those that take longer."""
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=grace_s)
            for task in late:
                task.cancel()

    def _take(self, limited: LimitedCall) -> float:
        return self.limits.take(*limited.call, keep=limited.keep)

    def _has_slot(self, urgency: Urgency) -> bool:
        is_card = urgency is Urgency.NEW_CARD
        return len(self.running) < (AT_ONCE if is_card else AT_ONCE - _RESERVED)

    def _start(self, entry: QueueEntry, call: Call | None) -> None:
        entry.is_busy = True
        task = asyncio.create_task(self._work_on(entry, call))
        self.running.add(task)
        # A callback and not a `finally` in the task: the body of a task that is
        # cancelled before its first step never runs, and the entry would stay busy.
        task.add_done_callback(partial(self._is_done, entry))

    async def _work_on(self, entry: QueueEntry, call: Call | None) -> None:
        # Calls of Slack and the store have timeouts of their own. This one bounds the
        # rest, so that one entry cannot hold one of the four slots for ever.
        async with asyncio.timeout(STEP_S):
            wait_s = await self.step(entry, call)
        entry.not_before = self.clock() + wait_s if wait_s else 0.0

    def _is_done(self, entry: QueueEntry, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        entry.is_busy = False
        entry.since = self.clock()
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(logger, error, "publisher.step_failed entry=%s", entry.key)
            entry.not_before = self.clock() + _FAILED_S
        self.queue.drop_done(entry)
        self.changed.set()


def _limited(entry: QueueEntry, call: Call) -> LimitedCall:
    """Return a call with how many tokens it leaves for new cards."""
    # A new card is posted, and posts have a bucket for each channel. Updates have a
    # bucket of their own, which no new card needs.
    is_reserved = call.method == POST and entry.urgency is not Urgency.NEW_CARD
    return LimitedCall(call, _RESERVED if is_reserved else 0)


async def wait_until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set or a timeout passes."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
