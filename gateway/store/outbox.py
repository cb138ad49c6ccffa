"""Outbox stream: append events, also to the audit log; consume them at least once."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.store.audit_seals import (
    decrypted_event,
    parts_of,
    sealed_event,
    sealed_text,
)
from twokey.gateway.store.connection import (
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
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.listed_members import ListedMembers
from twokey.gateway.store.message_format import is_newer
from twokey.gateway.store.readers import (
    entry_id,
    has_group,
    make_group,
    reader_groups,
)

logger = logging.getLogger(__name__)


_OPENED = f'"{EventName.APPROVAL_OPENED}"'.encode()
_APPROVAL = re.compile(rb'"approval":"([^"]+)"')
"""Which approval an event is about. No text can hold it: its quotes are escaped."""
_CLICKED = b'"request_digest":"s'
"""In an event of what somebody did in Slack, for the same reason."""

_PARSED_AT_ONCE = 20
_LOOKED_AT = 20
"""At how many of the newest events one look for a click looks."""


class Changes(NamedTuple):
    """What became of approvals since a place in the outbox.

    Attributes:
        opened: events of those that were opened.
        moved: when the others changed last, by their ids: milliseconds of the store.
        place: that was read to.
    """

    opened: list[Event]
    moved: dict[str, int]
    place: str


class Outbox:
    """The event stream of one shard, as one named reader sees it.

    Each reader (Slack, a metric, another chat) has its own consumer group and gets
    every event. An event of a newer version is left unacknowledged: a reader of that
    version takes it over. What is no event of ours is skipped, reported and counted in
    ``corrupt``, since others wait behind it.
    """

    def __init__(
        self,
        conn: Connection,
        keys: Keys,
        *,
        reader: str,
        members: ListedMembers,
    ) -> None:
        self._conn = conn
        self._members = members
        self._keys = keys
        self.reader = reader
        self.corrupt = 0
        self._taken = self._looked = "0-0"

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

    async def newest(self) -> str:
        """Return the place of the newest event, for `tail`."""
        reply = await self._conn.command(
            "XREVRANGE", self._keys.outbox, "+", "-", "COUNT", 1
        )
        found = entries(reply)
        return found[0].id if found else "0-0"

    async def has_new_click(self) -> bool:
        """Return whether somebody clicked since the last look; nothing is taken.

        Only the newest events are looked at, and none is checked: who acts on one reads
        it by `take`.
        """
        last = max(self._taken, self._looked, key=entry_id)
        reply = await self._conn.command(
            "XREVRANGE", self._keys.outbox, "+", f"({last}", "COUNT", _LOOKED_AT
        )
        if not (found := entries(reply)):
            return False
        self._looked = found[0].id
        return any(_CLICKED in self._body(entry) for entry in found)

    async def tail(
        self, after: str, *, block_ms: int, limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return what was announced after a place, and the place that was read to.

        Waits up to ``block_ms`` for the first event. Nothing is taken or acknowledged;
        what is not an event is left out.
        """
        found = await self._after(after, block_ms, limit)
        return self._events(found), found[-1].id if found else after

    async def changes(self, after: str, *, block_ms: int, limit: int = 500) -> Changes:
        """Return what became of approvals after a place; waits as `tail` does."""
        found = await self._after(after, block_ms, limit)
        # Each process that answers gets every event: it parses what it reads alone.
        opened: list[Entry] = []
        moved: dict[str, int] = {}
        for entry in found:
            body = self._body(entry)
            if _OPENED in body:
                opened.append(entry)
            elif named := _APPROVAL.search(body):
                moved[named[1].decode("utf-8", "replace")] = entry_id(entry.id)[0]
        place, events = found[-1].id if found else after, list[Event]()
        for start in range(0, len(opened), _PARSED_AT_ONCE):
            events += self._events(opened[start : start + _PARSED_AT_ONCE])
            # All of them would take a tenth of a second, in which no click is answered.
            await asyncio.sleep(0)
        return Changes(events, moved, place)

    async def _after(self, after: str, block_ms: int, limit: int) -> list[Entry]:
        reply = await self._conn.command(
            "XREAD", "COUNT", limit, "BLOCK", block_ms,
            "STREAMS", self._keys.outbox, after,
        )  # fmt: skip
        return first_stream(reply)

    async def _readable(self, found: list[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            try:
                read.append(self._event(entry))
            except (KeyError, ValueError) as error:
                is_ours = not isinstance(error, KeyError | NotSealed)
                if is_ours and is_newer(self._body(entry)):
                    logger.info("event.newer reader=%s seq=%s", self.reader, entry.id)
                    continue
                if not is_ours:
                    # Before it is acknowledged: others may be able to read it.
                    await self._members.ensure_known(self._keys)
                self.corrupt += 1
                logger.error(  # noqa: TRY400 - the error may hold what was written
                    "event.corrupt reader=%s seq=%s count=%d",
                    self.reader,
                    entry.id,
                    self.corrupt,
                )
                if not is_ours:
                    junk = b"\n".join(entry.values.values())
                    await self._members.report(
                        self._keys, self._keys.outbox, junk, about="event"
                    )
                # Acknowledged all the same: a reader that never does so keeps the
                # outbox from being trimmed.
                await self.done(entry.id)
        return read

    def _events(self, found: Sequence[Entry]) -> list[Event]:
        """Read events; what is none is left out."""
        read: list[Event] = []
        for entry in found:
            # Not counted as `_readable` does: the group that reads this event reports
            # it, once.
            with suppress(KeyError, ValueError):
                read.append(self._event(entry))
        return read

    def _event(self, entry: Entry) -> Event:
        """Read an event; raises KeyError or ValueError for anything else."""
        return event_in(self._conn, self._keys, entry)

    def _body(self, entry: Entry) -> bytes:
        body = entry.values.get("e", b"")
        with suppress(ValueError):
            return decrypted_event(self._conn, self._keys, body)
        return body

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
