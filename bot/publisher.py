"""Bring what happened into Slack: at least once, most urgent first, within limits.

One publisher a shard works at a time, under a lease; others wait to take over. It reads
the outbox into a `Board`, does one call after another, and acknowledges an event when
everything about it is said. What was read and not acknowledged is read again by the
next publisher, so a crash, a restart or an outage of Slack loses nothing. Whatever is
said twice after a crash is said about the same card: the card has one registered copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bot.board import Board, Topic
from bot.saying import Saying
from gateway.errors import StoreUnavailable, ThreadUnavailable
from gateway.failures import log_failure
from gateway.store.keys import Keys
from gateway.store.outbox import Outbox
from gateway.store.store import Store

logger = logging.getLogger(__name__)

ROOM = 500
AT_ONCE = 4

_CONSUMER = "publisher"
_BLOCK_MS = 1000
_RETRY_S = 1.0
_GRACE_S = 5.0
_JUDGED_EVERY_S = 0.5


@dataclass(slots=True)
class _Shift:
    """One time of holding the lease."""

    board: Board
    outbox: Outbox
    running: set[asyncio.Task[None]]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    is_smaller: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


class Publisher:
    """Publishes one shard.

    Args:
        store: to read from.
        keys: of the shard.
        tenant: whose events are published; each has a place of its own in the stream.
        saying: how to say it.
        clock: seconds, never going backwards.
        outdated: returns the approvals whose cards show what is so no longer, and
            keeps in its argument what it returned them for.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        tenant: str,
        saying: Saying,
        clock: Callable[[], float],
        outdated: Callable[[dict[str, str]], Awaitable[Sequence[str]]],
    ) -> None:
        self._outdated = outdated
        self._store = store
        self._keys = keys
        self._tenant = tenant
        self._reader = f"slack:{tenant}"
        self._saying = saying
        self._clock = clock
        self.is_leading = False

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then finish the calls that are under way."""
        while not stop.is_set():
            try:
                # No agent has the empty name, so this is nobody's thread.
                async with self._store.threads.lease(
                    self._keys, self._tenant, "", self._reader
                ) as lost:
                    self.is_leading = True
                    await self._lead(stop, lost)
            except ThreadUnavailable:
                logger.debug("publisher.standby shard=%s", self._keys.shard)
            except StoreUnavailable as error:
                logger.warning("publisher.store_unavailable why=%s", error)
            finally:
                self.is_leading = False
            await _pause(stop, _RETRY_S)

    async def _lead(self, stop: asyncio.Event, lost: asyncio.Event) -> None:
        outbox = self._store.outbox(self._keys, reader=self._reader)
        await outbox.prepare()
        shift = _Shift(Board(), outbox, set())
        logger.info("publisher.leading shard=%s", self._keys.shard)
        ends = [asyncio.create_task(event.wait()) for event in (stop, lost)]
        work = [
            asyncio.create_task(self._read(shift)),
            asyncio.create_task(self._write(shift)),
            asyncio.create_task(self._judge_again(shift)),
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
            shift.is_over = True
            for task in (*ends, *work):
                task.cancel()
            await asyncio.gather(*ends, *work, return_exceptions=True)
            if shift.running:
                _, late = await asyncio.wait(shift.running, timeout=_GRACE_S)
                for task in late:
                    task.cancel()

    async def _read(self, shift: _Shift) -> None:
        # Under the lease every event that is not acknowledged is ours to say.
        left = await shift.outbox.unfinished(_CONSUMER, idle_ms=0, limit=10 * ROOM)
        while not shift.is_over:
            for event in left:
                if event.tenant == self._tenant:
                    shift.board.add(event)
            others = (event for event in left if event.tenant != self._tenant)
            await shift.outbox.done(*(event.seq for event in others))
            shift.changed.set()
            if left:
                shift.happened.set()
            while len(shift.board) >= ROOM and not shift.is_over:
                shift.is_smaller.clear()
                await _pause(shift.is_smaller, _RETRY_S)
            left = await shift.outbox.take(_CONSUMER, block_ms=_BLOCK_MS)

    async def _judge_again(self, shift: _Shift) -> None:
        """Redraw cards that are judged otherwise since something happened.

        Once at the start: what the publisher before did not come to is found so.
        """
        named: dict[str, str] = {}
        while not shift.is_over:
            shift.happened.clear()
            try:
                for approval in await self._outdated(named):
                    shift.board.redraw(approval)
                    shift.changed.set()
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - cards are published without it
                log_failure(logger, error, "publisher.not_judged_again")
            await asyncio.sleep(_JUDGED_EVERY_S)
            while not (shift.is_over or shift.happened.is_set()):
                await _pause(shift.happened, _RETRY_S)

    async def _write(self, shift: _Shift) -> None:
        while not shift.is_over:
            shift.changed.clear()
            topic = shift.board.most_urgent(self._clock())
            if topic is None or len(shift.running) >= AT_ONCE:
                await self._until_something_is_due(shift)
                continue
            topic.is_busy = True
            task = asyncio.create_task(self._work_on(topic, shift))
            shift.running.add(task)
            task.add_done_callback(shift.running.discard)

    async def _until_something_is_due(self, shift: _Shift) -> None:
        at = shift.board.next_at()
        is_full = len(shift.running) >= AT_ONCE
        wait_s = None if at is None or is_full else max(0.0, at - self._clock())
        await _pause(shift.changed, wait_s)

    async def _work_on(self, topic: Topic, shift: _Shift) -> None:
        shown = topic.shown
        try:
            wait_s = await self._saying.step(topic, shift.outbox, self._keys)
            topic.not_before = self._clock() + wait_s if wait_s else 0.0
        finally:
            if topic.shown != shown:
                # What a card says may have changed while it was on its way to Slack.
                shift.happened.set()
            topic.is_busy = False
            shift.board.drop_done(topic)
            shift.changed.set()
            shift.is_smaller.set()


async def _pause(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
