"""Share one reading of a tenant's events among all followers in this process.

Followers do not poll: one blocking read serves all of them, and it stops with the last
follower.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from keyturn.gateway.approvals.events import Event, EventName, state_after
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.approval_views import EventPage, EventView
from keyturn.gateway.store.outbox import EventTail
from keyturn.gateway.store.readers import entry_id
from keyturn.gateway.store.store import Store

MayBe = Callable[[str], bool]

_PLACE = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)
_LARGEST = 2**64


class BadPlace(Exception):
    """A place that this gateway never issued."""


class Following:
    """One follower's place among the events of a tenant.

    Args:
        feed: the feed of the tenant.
        follower: receives the new events.
        place: id of the last event before the followed ones.
        wants: returns whether an event is wanted.
    """

    def __init__(
        self,
        feed: EventFeed,
        follower: Follower,
        place: str,
        wants: Callable[[Event], bool],
    ) -> None:
        self._feed = feed
        self._follower = follower
        self.place = place
        self._wants = wants
        self._begun = False

    async def next(self, within_s: float) -> EventPage:
        """Return the events since the last page; wait for the first at most this long.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        if not self._begun:
            self._begun = True
            page = await self._earlier()
            if page.events or page.missed:
                return page
        if self._feed.is_closing:
            return self._page([])
        found = await self._follower.wait(within_s)
        missed, self._follower.missed = self._follower.missed, False
        events: list[EventView] = []
        for event in found:
            if entry_id(event.seq) > entry_id(self.place):
                self.place = event.seq
                events.append(self._view(event))
        return self._page(events, missed=missed)

    async def _earlier(self) -> EventPage:
        """Return the events between the place and the start of the following."""
        events: list[EventView] = []
        tail, place = self._feed.tail, self.place
        until = entry_id(self._follower.place)
        if entry_id(place) >= until:
            return self._page(events)
        missed = not await tail.keeps(place)
        while entry_id(place) < until:
            found, place = await tail.read(place)
            for event in found:
                if self._wants(event):
                    self.place = event.seq
                    events.append(self._view(event))
            if not found:
                break
        self.place = max(place, self.place, key=entry_id)
        return self._page(events, missed=missed)

    def _page(self, events: list[EventView], *, missed: bool = False) -> EventPage:
        return EventPage(events=tuple(events), next=self.place, missed=missed)

    def _view(self, event: Event) -> EventView:
        return EventView(
            id=self.place,
            name=event.name,
            agent=event.agent,
            thread=event.thread,
            run=event.run_ref,
            approval=event.approval,
            item=event.item,
            tool=event.tool,
            state=state_after(event.name, event.reason),
            at=datetime.fromtimestamp(event.at_ms / 1000, UTC),
        )


def _is_about_a_call(event: Event) -> bool:
    if event.name is EventName.RECORD_QUARANTINED:
        return True
    return bool(event.item) and state_after(event.name, event.reason) is not None


logger = logging.getLogger(__name__)

BLOCK_MS = 5000
"""How long one read waits for an event; less than a connection's time-out."""

PAUSE_S = 1.0
"""Seconds before another read of a store that did not answer."""

MOST_WAITING = 1000
"""Most events that may wait for one follower; a slower one gets ``missed``."""


class Follower:
    """A waiter for events, with a queue.

    Args:
        wants: returns whether an event is wanted.
        place: id of the last event before the first one to follow.

    Attributes:
        place: the same.
        missed: True once events were dropped because the queue was full.
    """

    def __init__(self, wants: Callable[[Event], bool], place: str) -> None:
        self.place = place
        self.missed = False
        self._wants = wants
        self._events: list[Event] = []
        self._wake = asyncio.Event()

    def give(self, event: Event) -> None:
        """Queue an event if it is wanted and there is room."""
        if not self._wants(event):
            return
        if len(self._events) >= MOST_WAITING:
            self.missed = True
        else:
            self._events.append(event)
        self._wake.set()

    def wake(self) -> None:
        """End the wait without an event."""
        self._wake.set()

    async def wait(self, within_s: float) -> list[Event]:
        """Return the queued events; wait for the first one at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        self._wake.clear()
        events, self._events = self._events, []
        return events


class EventFeed:
    """The events of one tenant, for all followers in this process.

    Attributes:
        tail: reads the events.
        is_closing: True if waits return immediately, because the process stops.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._tenant = tenant
        self.tail = EventTail(store.conn, store.keys_of_tenant(tenant))
        self._followers: list[Follower] = []
        self._reading: asyncio.Task[None] | None = None
        self._place = ""
        self._lock = asyncio.Lock()
        self.is_closing = False

    @asynccontextmanager
    async def following(
        self, wants: Callable[[Event], bool]
    ) -> AsyncGenerator[Follower]:
        """Follow the wanted events from now on.

        Read records only after entering, or a change in between is missed.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        async with self._lock:
            if self._reading is None or self._reading.done():
                self._place = await self.tail.newest()
                self._reading = asyncio.create_task(self._read())
            follower = Follower(wants, self._place)
            self._followers.append(follower)
        try:
            yield follower
        finally:
            self._followers.remove(follower)
            if not self._followers:
                await self.close()

    @asynccontextmanager
    async def following_calls(
        self, may_be: MayBe, *, agent: str = "", after: str = ""
    ) -> AsyncGenerator[Following]:
        """Follow what happens to the calls of agents.

        Args:
            may_be: returns whether the caller may act for an agent.
            agent: only events of this agent; "" for all.
            after: the place to continue from; "" for now.

        Raises:
            BadPlace: when ``after`` is not a place of this gateway.
            StoreUnavailable: when the store does not answer.
        """

        def wants(event: Event) -> bool:
            run = event.run_ref.agent
            return (
                event.tenant == self._tenant
                and _is_about_a_call(event)
                and (not agent or agent in {event.agent, run})
                and may_be(event.agent)
                and may_be(run)
            )

        if after and (not _PLACE.fullmatch(after) or max(entry_id(after)) >= _LARGEST):
            raise BadPlace(after)
        async with self.following(wants) as follower:
            yield Following(self, follower, after or follower.place, wants)

    def end_waits(self) -> None:
        """End all waits, so that pending requests are answered now."""
        self.is_closing = True
        for follower in self._followers:
            follower.wake()

    async def close(self) -> None:
        """Stop reading."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            # Not `await reading`: its cancellation would be taken for the caller's.
            await asyncio.wait([reading])

    async def _read(self) -> None:
        while True:
            try:
                events, place = await self.tail.read(self._place, block_ms=BLOCK_MS)
            except StoreUnavailable as error:
                # The place is unchanged, so an outage skips no event.
                logger.warning("events.not_followed error=%s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            self._place = place
            for event in events:
                if event.tenant == self._tenant:
                    for follower in self._followers:
                        follower.give(event)
