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
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from twokey.bot.clicks_first import at_once
from twokey.bot.delivery.outbox_queue import Call, OutboxQueue, QueueEntry, Urgency
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
        soonest, now = _MAX_SLEEP_S, self.clock()
        with closing(self.queue.most_urgent()) as waiting:
            for entry in waiting:
                # `break` and not `continue`: entries come most urgent first, and an
                # entry without a free slot must not be overtaken by a less urgent one.
                if not self._has_slot(entry.urgency):
                    break
                wait_s = entry.due_at - now
                call = self.next_call(entry)
                if wait_s <= 0 and call is not None:
                    # Taken before the task starts. If the task took it, two tasks
                    # started in one pass could both count on the last token.
                    wait_s = self.limits.take(*call, keep=_reserve(entry, call))
                if wait_s <= 0:
                    self._start(entry, call)
                else:
                    soonest = min(soonest, wait_s)
        return soonest

    def overdue_s(self) -> float:
        """Return for how many seconds an entry has been due without being started."""
        now = self.clock()
        ages = [
            now - self._due_at(entry)
            for entry in self.queue.waiting()
            if self._has_slot(entry.urgency)
        ]
        # The second 0.0 keeps `max` from a single argument when no entry waits.
        return max(0.0, *ages, 0.0)

    async def finish(self, grace_s: float) -> None:
        """Wait for running tasks; cancel those that take longer."""
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=grace_s)
            for task in late:
                task.cancel()

    def _due_at(self, entry: QueueEntry) -> float:
        at = max(entry.since, entry.due_at)
        call = self.next_call(entry)
        if call is None:
            return at
        return max(at, self.limits.free_at(*call, keep=_reserve(entry, call)))

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


def _reserve(entry: QueueEntry, call: Call) -> int:
    """Return how many tokens a call leaves for new cards."""
    # A new card is posted, and posts have a bucket for each channel. Updates have a
    # bucket of their own, which no new card needs.
    is_reserved = call.method == POST and entry.urgency is not Urgency.NEW_CARD
    return _RESERVED if is_reserved else 0


async def wait_until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set or a timeout passes."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
