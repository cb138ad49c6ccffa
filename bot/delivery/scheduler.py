"""Schedule work on topics: most urgent first, within Slack's rate limits.

A token of a rate limit is taken here, before the work begins, in order of urgency. So
no topic overtakes a more urgent one because its work is shorter, and what is not
urgent leaves a token and a place at work for a new card.

Whoever changes a topic sets ``changed``. A task that ends leaves ``running`` and sets
it in one step, its done callback. And no wait is without a limit: even a change that
nobody told of is seen soon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from twokey.bot.delivery.outbox_queue import Call, OutboxQueue, Topic, Urgency
from twokey.bot.limits import POST, Limits
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

AT_ONCE = 4
"""Topics that are worked on at the same time; the last place is for new cards."""

STEP_S = 60.0
"""How long the work on one topic may take, two answers of Slack and more."""

_LOOK_S = 1.0
_FAILED_S = 5.0
_RESERVED = 1

Step = Callable[[Topic, Call | None], Awaitable[float]]
"""Makes the next call for a topic, the one given; returns how long it has to wait."""


@dataclass(slots=True)
class Scheduler:
    """Work on the topics of a queue.

    Attributes:
        queue: what there is to do.
        next_call: returns the call that a topic needs next; None for none.
        limits: knows how long a call has to wait.
        step: does it. It gives back a call that it was given and did not make.
        clock: seconds, never going backwards.
    """

    queue: OutboxQueue
    next_call: Callable[[Topic], Call | None]
    limits: Limits
    step: Step
    clock: Callable[[], float]
    running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Work until cancelled; what is under way then goes on."""
        while True:
            # Before the look at the queue: a change that comes between the look and
            # `pause` must wake it.
            self.changed.clear()
            await pause(self.changed, min(_LOOK_S, self.start_what_may()))

    def start_what_may(self) -> float:
        """Start the work on what may go now; return the seconds until more may."""
        soonest, now = _LOOK_S, self.clock()
        for topic in self.queue.waiting():
            # `break` and not `continue`: topics come most urgent first, and what has no
            # place now must not be overtaken by a less urgent one.
            if not self._has_place(topic.urgency):
                break
            wait_s = topic.due_at - now
            call = self.next_call(topic)
            if wait_s <= 0 and call is not None:
                # Taken before the task starts. If the task took it, two tasks started
                # in one pass would both count on the last token.
                wait_s = self.limits.take(*call, keep=_kept(topic, call))
            if wait_s <= 0:
                self._start(topic, call)
            else:
                soonest = min(soonest, wait_s)
        return soonest

    def overdue_s(self) -> float:
        """Return for how long a topic could have been worked on, and was not."""
        now = self.clock()
        ages = [
            now - self._due_at(topic)
            for topic in self.queue.waiting()
            if self._has_place(topic.urgency)
        ]
        # The second 0.0 keeps `max` from a single argument when no topic waits.
        return max(0.0, *ages, 0.0)

    async def finish(self, grace_s: float) -> None:
        """Wait for what is under way, and cancel what takes longer."""
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=grace_s)
            for task in late:
                task.cancel()

    def _due_at(self, topic: Topic) -> float:
        at = max(topic.since, topic.due_at)
        call = self.next_call(topic)
        if call is None:
            return at
        return max(at, self.limits.free_at(*call, keep=_kept(topic, call)))

    def _has_place(self, urgency: Urgency) -> bool:
        is_card = urgency is Urgency.NEW_CARD
        return len(self.running) < (AT_ONCE if is_card else AT_ONCE - _RESERVED)

    def _start(self, topic: Topic, call: Call | None) -> None:
        topic.is_busy = True
        task = asyncio.create_task(self._work_on(topic, call))
        self.running.add(task)
        # A callback and not a `finally` in the task: a task that is cancelled before
        # its first step never enters its body, and the topic would stay busy for ever.
        task.add_done_callback(partial(self._is_done, topic))

    async def _work_on(self, topic: Topic, call: Call | None) -> None:
        # Every call inside has a time limit of its own. This one is for what has none,
        # so that one topic cannot hold a place of four for ever.
        async with asyncio.timeout(STEP_S):
            wait_s = await self.step(topic, call)
        topic.not_before = self.clock() + wait_s if wait_s else 0.0

    def _is_done(self, topic: Topic, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        topic.is_busy = False
        topic.since = self.clock()
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(logger, error, "publisher.step_failed topic=%s", topic.key)
            topic.not_before = self.clock() + _FAILED_S
        self.queue.drop_done(topic)
        self.changed.set()


def _kept(topic: Topic, call: Call) -> int:
    """Return how many tokens a call leaves to new cards."""
    # Only posts are counted by channel; updates share one bucket, and no new card waits
    # for that.
    is_reserved = call.method == POST and topic.urgency is not Urgency.NEW_CARD
    return _RESERVED if is_reserved else 0


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, so many seconds at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
