"""Tell agents in other processes what happened to their calls, from any place on."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from twokey.gateway.approvals.events import Event, EventName, state_after
from twokey.gateway.protocol.approval_views import EventPage, EventView
from twokey.gateway.service.event_feed import EventFeed, Follower
from twokey.gateway.store.readers import entry_id

MayBe = Callable[[str], bool]

_PLACE = re.compile(r"(s[0-9]{1,4}):([0-9]{1,20}-[0-9]{1,20})", re.ASCII)
_LARGEST = 2**64


class BadPlace(Exception):
    """A place that is none of this gateway's."""


class Following:
    """One follower's place among the events of a tenant.

    Args:
        feed: what happens.
        follower: gets it.
        places: behind which events, by shard.
        wants: says which events are wanted.
    """

    def __init__(
        self,
        feed: EventFeed,
        follower: Follower,
        places: dict[str, str],
        wants: Callable[[Event], bool],
    ) -> None:
        self._feed = feed
        self._follower = follower
        self._places = places
        self._wants = wants
        self._begun = False

    async def next(self, within_s: float) -> EventPage:
        """Return what came since the last page; wait for the first, so long at most.

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
        fed = await self._follower.wait(within_s)
        missed, self._follower.missed = self._follower.missed, False
        events: list[EventView] = []
        for one in fed:
            if entry_id(one.place) > entry_id(self._places[one.shard]):
                self._places[one.shard] = one.place
                events.append(self._view(one.event))
        return self._page(events, missed=missed)

    async def _earlier(self) -> EventPage:
        """Return what happened between the place and when following began."""
        events: list[EventView] = []
        missed = False
        for tail in self._feed.tails:
            until = entry_id(self._follower.places[tail.shard])
            place = self._places[tail.shard]
            if entry_id(place) >= until:
                continue
            missed = missed or not await tail.keeps(place)
            while entry_id(place) < until:
                found, place = await tail.read(place)
                for event in found:
                    if self._wants(event):
                        self._places[tail.shard] = event.seq
                        events.append(self._view(event))
                if not found:
                    break
            self._places[tail.shard] = max(
                place, self._places[tail.shard], key=entry_id
            )
        return self._page(events, missed=missed)

    def _page(self, events: list[EventView], *, missed: bool = False) -> EventPage:
        return EventPage(events=tuple(events), next=self.place, missed=missed)

    @property
    def place(self) -> str:
        """Return the place behind everything that was told."""
        return ",".join(f"{shard}:{at}" for shard, at in self._places.items())

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


class SettledEvents:
    """What happened to the calls of one tenant.

    Args:
        feed: what happens.
        tenant: whose calls these are.
    """

    def __init__(self, feed: EventFeed, *, tenant: str) -> None:
        self._feed = feed
        self._tenant = tenant

    @property
    def is_closing(self) -> bool:
        """Return whether nobody waits any longer, since the process stops."""
        return self._feed.is_closing

    def end_waits(self) -> None:
        """Let nobody wait any longer: what they asked for is answered now."""
        self._feed.end_waits()

    @asynccontextmanager
    async def following(
        self, may_be: MayBe, *, agent: str = "", after: str = ""
    ) -> AsyncGenerator[Following]:
        """Follow what happens to the calls of agents.

        Args:
            may_be: says for which agents who asks speaks.
            agent: only what concerns this one; "" for all.
            after: the place to go on from; "" for now.

        Raises:
            BadPlace: when that is no place.
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

        given = _places(after)
        async with self._feed.following(wants) as follower:
            places = {**follower.places}
            unknown = given.keys() - places.keys()
            if unknown:
                raise BadPlace(after)
            yield Following(self._feed, follower, places | given, wants)


def _is_about_a_call(event: Event) -> bool:
    if event.name is EventName.RECORD_QUARANTINED:
        return True
    return bool(event.item) and state_after(event.name, event.reason) is not None


def _places(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in text.split(",") if text else ():
        match = _PLACE.fullmatch(one)
        if match is None or max(entry_id(match[2])) >= _LARGEST:
            raise BadPlace(text)
        found[match[1]] = match[2]
    return found
