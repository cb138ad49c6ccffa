"""Share one reading of a tenant's events among all who wait for one.

A wait costs no polling: one blocking read a shard serves everybody in this process,
and there is none while nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from twokey.gateway.approvals.events import Event
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.event_tail import EventTail
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

BLOCK_MS = 5000
"""How long one read waits for an event; less than a connection's time-out."""

PAUSE_S = 1.0
"""How long to wait before a store that did not answer is read again."""

MOST_WAITING = 1000
"""How many events may wait for one follower; a slower one is told that some are
missing."""


@dataclass(frozen=True)
class FedEvent:
    """An event, in which shard it happened, and the place behind it."""

    event: Event
    shard: str
    place: str


class Follower:
    """Who waits for events.

    Args:
        wants: says of each event whether it is wanted.
        places: where the follower starts in each shard.

    Attributes:
        places: the same.
        missed: set when some events could not be kept.
    """

    def __init__(
        self, wants: Callable[[Event], bool], places: Mapping[str, str]
    ) -> None:
        self.places = places
        self.missed = False
        self._wants = wants
        self._events: list[FedEvent] = []
        self._wake = asyncio.Event()

    def give(self, fed: FedEvent) -> None:
        """Hand an event over, if it is wanted and there is room."""
        if not self._wants(fed.event):
            return
        if len(self._events) >= MOST_WAITING:
            self.missed = True
        else:
            self._events.append(fed)
        self._wake.set()

    def wake(self) -> None:
        """End the wait without an event."""
        self._wake.set()

    async def wait(self, within_s: float) -> list[FedEvent]:
        """Return what came since the last time; wait for the first, so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        self._wake.clear()
        events, self._events = self._events, []
        return events


class EventFeed:
    """The events of one tenant, for all who wait in this process.

    Attributes:
        tails: reads each shard of the tenant.
        is_closing: nobody waits any longer, since the process stops.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._tenant = tenant
        self.tails = [EventTail(store.conn, keys) for keys in store.parts_of(tenant)]
        self._followers: list[Follower] = []
        self._reading: asyncio.Task[None] | None = None
        self._places: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self.is_closing = False

    @asynccontextmanager
    async def following(
        self, wants: Callable[[Event], bool]
    ) -> AsyncGenerator[Follower]:
        """Follow the events that are wanted, from now on.

        Read the records after this was entered, or a change in between is missed.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        async with self._lock:
            if self._reading is None or self._reading.done():
                self._places = {tail.shard: await tail.newest() for tail in self.tails}
                self._reading = asyncio.create_task(self._read_all())
            follower = Follower(wants, dict(self._places))
            self._followers.append(follower)
        try:
            yield follower
        finally:
            self._followers.remove(follower)
            if not self._followers:
                await self.close()

    def end_waits(self) -> None:
        """Let nobody wait any longer: what they asked for is answered now."""
        self.is_closing = True
        for follower in self._followers:
            follower.wake()

    async def close(self) -> None:
        """Stop reading."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            # Not `await reading`: the caller's own cancellation would look like its.
            await asyncio.wait([reading])

    async def _read_all(self) -> None:
        await asyncio.gather(*map(self._read, self.tails))

    async def _read(self, tail: EventTail) -> None:
        while True:
            after = self._places[tail.shard]
            try:
                events, place = await tail.read(after, block_ms=BLOCK_MS)
            except StoreUnavailable as error:
                # The place stays: nothing is skipped while the store is away.
                logger.warning("events.not_followed error=%s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            self._places[tail.shard] = place
            for event in events:
                if event.tenant != self._tenant:
                    continue
                fed = FedEvent(event, tail.shard, event.seq)
                for follower in self._followers:
                    follower.give(fed)
