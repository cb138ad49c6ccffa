"""Wake the followers of a tenant's events in this process, and read their events.

Followers do not poll: one blocking read wakes all of them, and it stops with the last
follower. A follower that was woken reads the events after its place.
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
from keyturn.gateway.store.events.outbox import entry_id
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

MayBe = Callable[[str], bool]

# Every number of 19 digits fits into the 64 bits of a stream's ids.
_PLACE = re.compile(r"[0-9]{1,19}-[0-9]{1,19}", re.ASCII)


class BadPlace(Exception):
    """A place that this gateway never issued."""


def _is_about_a_call(event: Event) -> bool:
    if event.name is EventName.RECORD_QUARANTINED:
        return True
    is_news = state_after(event.name, event.reason) is not None
    return bool(event.item) and (is_news or event.name is EventName.ITEM_WANTED_AGAIN)


BLOCK_MS = 5000
"""How long one read waits for an event; less than a connection's time-out."""

PAUSE_S = 1.0
"""Seconds before another read of a store that did not answer."""


class Follower:
    """A place among the events of a tenant, and the wait for the next wanted event.

    Args:
        feed: the feed of the tenant.
        wants: returns whether an event is wanted.
        place: id of the last event before the followed ones.
        has_missed: events after the place have left the store.
    """

    def __init__(
        self,
        feed: EventFeed,
        wants: Callable[[Event], bool],
        place: str,
        *,
        has_missed: bool,
    ) -> None:
        self.wants = wants
        self._feed = feed
        self._place = place
        self._has_missed = has_missed
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """End the wait."""
        self._wake.set()

    async def wait(self, within_s: float) -> None:
        """Wait for a wanted event, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        self._wake.clear()

    async def next(self, within_s: float) -> EventPage:
        """Return the events since the last page; wait for the first at most this long.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        # Cleared before the reading: an event that follows it ends the wait.
        self._wake.clear()
        page = await self._read()
        if page.events or page.missed or self._feed.is_closing:
            return page
        await self.wait(within_s)
        return await self._read()

    async def _read(self) -> EventPage:
        wanted: list[Event] = []
        is_end = False
        while not (wanted or is_end):
            found, place = await self._feed.log.follow(self._place)
            wanted = [event for event in found if self.wants(event)]
            is_end, self._place = place == self._place, place
        missed, self._has_missed = self._has_missed, False
        views = tuple(map(_view, wanted))
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
        log: has the events.
        is_closing: True if waits return immediately, because the process stops.
    """

    def __init__(self, store: Store, *, tenant: str) -> None:
        self._tenant = tenant
        self.log = store.audit(store.keys_of_tenant(tenant))
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
            is_first = self._reading is None or self._reading.done()
            if is_first:
                _, self._place = await self.log.follow("")
            is_earlier = bool(after) and entry_id(after) < entry_id(self._place)
            follower = Follower(
                self,
                wants,
                after or self._place,
                has_missed=is_earlier and not await self.log.keeps(after),
            )
            self._followers.append(follower)
            if is_first:
                self._reading = asyncio.create_task(self._read())
        try:
            yield follower
        finally:
            self._followers.remove(follower)
            if not self._followers:
                await self.aclose()

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

        if after and not _PLACE.fullmatch(after):
            raise BadPlace(after)
        return self.following(wants, after)

    def end_waits(self) -> None:
        """End all waits, so that pending requests are answered now."""
        self.is_closing = True
        for follower in self._followers:
            follower.wake()

    async def aclose(self) -> None:
        """Stop reading."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            # Not `await reading`: its cancellation would be taken for the caller's.
            await asyncio.wait([reading])

    async def _read(self) -> None:
        while True:
            try:
                events, place = await self.log.follow(self._place, block_ms=BLOCK_MS)
            except StoreUnavailable as error:
                # The place is unchanged, so an outage skips no event.
                logger.warning("events.not_followed error=%s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            self._place = place
            for event in events:
                if event.tenant == self._tenant:
                    for follower in self._followers:
                        if follower.wants(event):
                            follower.wake()
