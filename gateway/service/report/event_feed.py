"""Share one reading of a tenant's events among all followers in this process.

Followers do not poll: one blocking read serves all of them, and it stops with the last
follower.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime

from keyturn.gateway.approvals.events import Event, EventName, state_after
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.approval_views import EventPage, EventView
from keyturn.gateway.store.events.outbox import EventTail
from keyturn.gateway.store.events.readers import entry_id
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

MayBe = Callable[[str], bool]

_PLACE = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)
_LARGEST = 2**64


class BadPlace(Exception):
    """A place that this gateway never issued."""


def _is_about_a_call(event: Event) -> bool:
    if event.name is EventName.RECORD_QUARANTINED:
        return True
    return bool(event.item) and state_after(event.name, event.reason) is not None


BLOCK_MS = 5000
"""How long one read waits for an event; less than a connection's time-out."""

PAUSE_S = 1.0
"""Seconds before another read of a store that did not answer."""

MOST_WAITING = 1000
"""Most events that may wait for one follower; a slower one gets ``missed``."""


class Follower:
    """A follower's queue of events, and its place among the events of a tenant.

    Args:
        feed: the feed of the tenant.
        wants: returns whether an event is wanted.
        start: id of the last event before those that the feed gives.
        after: id of the last event before the followed ones; "" for ``start``.
    """

    def __init__(
        self,
        feed: EventFeed,
        wants: Callable[[Event], bool],
        start: str,
        after: str = "",
    ) -> None:
        self._feed = feed
        self._wants = wants
        self._start = start
        self._place = after or start
        self._begun = self._missed = False
        self._events: list[Event] = []
        self._wake = asyncio.Event()

    def give(self, event: Event) -> None:
        """Queue an event if it is wanted and there is room."""
        if not self._wants(event):
            return
        if len(self._events) >= MOST_WAITING:
            self._missed = True
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
        found = await self.wait(within_s)
        missed, self._missed = self._missed, False
        place = entry_id(self._place)
        return self._page(
            [event for event in found if entry_id(event.seq) > place], missed=missed
        )

    async def _earlier(self) -> EventPage:
        """Return the events between the place and the start of the following."""
        events: list[Event] = []
        tail, place = self._feed.tail, self._place
        until = entry_id(self._start)
        if entry_id(place) >= until:
            return self._page(events)
        missed = not await tail.keeps(place)
        while entry_id(place) < until:
            found, place = await tail.read(place)
            events += filter(self._wants, found)
            if not found:
                break
        page = self._page(events, missed=missed)
        self._place = max(place, self._place, key=entry_id)
        return page.with_(next=self._place)

    def _page(self, events: list[Event], *, missed: bool = False) -> EventPage:
        views = tuple(map(_view, events))
        self._place = events[-1].seq if events else self._place
        return EventPage(events=views, next=self._place, missed=missed)


def _view(event: Event) -> EventView:
    return EventView(
        id=event.seq,
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
        self, wants: Callable[[Event], bool], after: str = ""
    ) -> AsyncGenerator[Follower]:
        """Follow the wanted events from now on, or after a place.

        Read records only after entering, or a change in between is missed.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        async with self._lock:
            if self._reading is None or self._reading.done():
                self._place = await self.tail.newest()
                self._reading = asyncio.create_task(self._read())
            follower = Follower(self, wants, self._place, after)
            self._followers.append(follower)
        try:
            yield follower
        finally:
            self._followers.remove(follower)
            if not self._followers:
                await self.close()

    def following_calls(
        self, may_be: MayBe, *, agent: str = "", after: str = ""
    ) -> AbstractAsyncContextManager[Follower]:
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
        return self.following(wants, after)

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
