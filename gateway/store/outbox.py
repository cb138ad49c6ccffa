"""Streams of events: the outbox, consumed at least once, and the audit log behind it.

Events are appended to both. The outbox forgets what its readers have taken. A program
that was away goes on where it was by reading the audit log (`EventTail`), as often as
it likes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.store.audit_seals import parts_of, sealed_event, sealed_text
from keyturn.gateway.store.connection import (
    Argument,
    Connection,
    Entry,
    Reply,
    claimed,
    entries,
    first_stream,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.readers import entry_id, has_group, make_group, reader_groups
from keyturn.gateway.store.sealing import Sealed, Sealing

logger = logging.getLogger(__name__)

START = "0-0"
"""The place before everything."""


class Outbox:
    """The event stream of one tenant, as one named reader sees it.

    Each reader (Slack, a metric, another chat) has its own consumer group and gets
    every event. What is no event of ours is skipped, reported and counted in
    ``corrupt``, since others wait behind it.
    """

    def __init__(
        self, conn: Connection, keys: Keys, *, reader: str, sealing: Sealing
    ) -> None:
        self._conn = conn
        self._sealing = sealing
        self._keys = keys
        self.reader = reader
        self.corrupt = 0
        self._taken = "0-0"

    async def prepare(self) -> None:
        """Create this reader's group unless it is there, from the first event on."""
        await make_group(self._conn, self._keys.outbox, self.reader)

    async def is_known(self) -> bool:
        """Return whether events are kept for this reader."""
        return await has_group(self._conn, self._keys, self.reader)

    async def put(self, event: Event) -> None:
        """Announce something that changes no approval, such as a finished run."""
        at_ms = await self._conn.now_ms(self._keys.outbox)
        await self._conn.keep(
            *announcement(self._conn, self._keys, event, event, at_ms)
        )

    async def unfinished(
        self, consumer: str, *, idle_ms: int, limit: int = 100
    ) -> list[Event]:
        """Take over events that a reader took and never acknowledged, oldest first."""
        found: list[Event] = []
        after = "0-0"
        # One XAUTOCLAIM looks at ten times its COUNT and no further: as many events
        # that were taken a moment ago would hide all later ones.
        while after and len(found) < limit:
            page, after = await self._claim(consumer, idle_ms, after, limit)
            found += page
        return found

    async def left(
        self, consumer: str, *, start: str = "0-0", limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return a page of what any consumer took and did not acknowledge.

        Returns:
            The events, in order, and where the next page starts; "" after the last.
        """
        return await self._claim(consumer, 0, start, limit)

    async def _claim(
        self, consumer: str, idle_ms: int, start: str, limit: int
    ) -> tuple[list[Event], str]:
        reply = await self._conn.command(
            "XAUTOCLAIM", self._keys.outbox, self.reader, consumer, idle_ms,
            start, "COUNT", limit,
        )  # fmt: skip
        after = text(cast("list[Reply]", reply)[0])
        found = claimed(reply)
        self._taken = max((self._taken, *(one.id for one in found)), key=entry_id)
        return await self._readable(found), "" if after == "0-0" else after

    async def unread_ms(self) -> int:
        """Return how long the oldest event waits that this reader has not taken."""
        groups = await reader_groups(self._conn, self._keys)
        taken = next((one.taken for one in groups if one.name == self.reader), "0-0")
        # "(" leaves out the entry itself: what is asked for comes behind it.
        found, now = await self._conn.transaction(
            ["XRANGE", self._keys.outbox, f"({taken}", "+", "COUNT", 1], ["TIME"]
        )
        oldest = entries(found)
        if not oldest:
            return 0
        return max(0, milliseconds(now) - entry_id(oldest[0].id)[0])

    async def take(
        self, consumer: str, *, block_ms: int, limit: int = 100
    ) -> list[Event]:
        """Take new events; waits up to ``block_ms`` for the first one.

        One consumer is one process: it takes one page after the other.
        """
        words = "XREADGROUP", "GROUP", self.reader, consumer, "COUNT", limit
        streams = "STREAMS", self._keys.outbox
        resent = self._conn.resent
        reply = await self._conn.command(*words, "BLOCK", block_ms, *streams, ">")
        found = first_stream(reply)
        if self._conn.resent != resent:
            # Of two that were sent, the answer to the first may have been lost, and the
            # server counts what it held as taken: it would be read by nobody.
            found = list[Entry]()
            while reply := first_stream(
                await self._conn.command(
                    *words, *streams, found[-1].id if found else self._taken
                )
            ):
                found += reply
            # What was trimmed has an id and nothing else.
            found = [one for one in found if one.values]
        self._taken = max((self._taken, *(one.id for one in found)), key=entry_id)
        return await self._readable(found)

    async def _readable(self, found: list[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            try:
                read.append(self._event(entry))
            except (KeyError, ValueError) as error:
                if isinstance(error, KeyError | NotSealed):
                    # Before it is acknowledged: others may be able to read it.
                    junk = b"\n".join(entry.values.values())
                    await self._sealing.refuse(self._keys, Sealed.EVENT, junk)
                self.corrupt += 1
                logger.error(  # noqa: TRY400 - the error may hold what was written
                    "event.corrupt reader=%s seq=%s count=%d",
                    self.reader,
                    entry.id,
                    self.corrupt,
                )
                # Acknowledged all the same: a reader that never does so keeps the
                # outbox from being trimmed.
                await self.done(entry.id)
        return read

    def _event(self, entry: Entry) -> Event:
        """Read an event; raises KeyError or ValueError for anything else."""
        return event_in(self._conn, self._keys, entry)

    async def done(self, *seqs: str) -> None:
        """Acknowledge events by their ``seq``."""
        if seqs:
            await self._conn.command("XACK", self._keys.outbox, self.reader, *seqs)


def announcement(
    conn: Connection, keys: Keys, outbox_event: Event, audit_event: Event, at_ms: int
) -> list[list[Argument]]:
    """Return the commands that put an event into the outbox and the audit log."""
    streams = (keys.outbox, outbox_event), (keys.audit, audit_event)
    return [
        _added(stream, *parts_of(sealed_text(conn, keys, one.model_dump_json())), at_ms)
        for stream, one in streams
    ]


def _added(stream: str, body: str, seal: str, at_ms: int) -> list[Argument]:
    return ["XADD", stream, "*", "e", body, "at", at_ms, "s", seal]


class NotSealed(ValueError):
    """Somebody else wrote this entry of an outbox, or changed it."""


def event_in(conn: Connection, keys: Keys, entry: Entry) -> Event:
    """Read the event of an entry of an outbox.

    Raises:
        KeyError: it holds none.
        NotSealed: it is none of ours.
        ValueError: it cannot be read.
    """
    body = sealed_event(conn, keys, entry.values)
    if body is None:
        raise NotSealed
    return Event.model_validate_json(body).with_(
        at_ms=number(entry.values["at"]), seq=entry.id
    )


class EventTail:
    """The events of one tenant, in order.

    Args:
        conn: to the store.
        keys: of the tenant.
    """

    def __init__(self, conn: Connection, keys: Keys) -> None:
        self._conn = conn
        self._keys = keys
        self._name = keys.audit

    async def newest(self) -> str:
        """Return the place of the newest event."""
        reply = await self._conn.command("XREVRANGE", self._name, "+", "-", "COUNT", 1)
        found = entries(reply)
        return found[0].id if found else START

    async def keeps(self, place: str) -> bool:
        """Return whether nothing behind a place is known to be dropped."""
        reply = await self._conn.command("XRANGE", self._name, "-", "+", "COUNT", 1)
        oldest = entries(reply)
        return bool(oldest) and entry_id(oldest[0].id) <= entry_id(place)

    async def read(
        self, after: str, *, block_ms: int | None = None, limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return what came after a place, and the place that was read to.

        Waits up to ``block_ms`` for the first event; None does not wait. What is no
        event is left out.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        waits: list[str | int] = [] if block_ms is None else ["BLOCK", block_ms]
        reply = await self._conn.command(
            "XREAD", "COUNT", limit, *waits, "STREAMS", self._name, after
        )
        found = first_stream(reply)
        return self._events(found), found[-1].id if found else after

    def _events(self, found: Sequence[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            # Readers of the log itself report what cannot be read.
            with suppress(KeyError, ValueError):
                read.append(event_in(self._conn, self._keys, entry))
        return read
