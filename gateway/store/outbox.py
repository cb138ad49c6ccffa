"""Outbox stream and audit log: append events, consume them at least once, trim."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from typing import cast

from twokey.gateway.approvals.events import Event
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
from twokey.gateway.store.message_format import is_newer
from twokey.gateway.store.readers import (
    entry_id,
    has_group,
    make_group,
    reader_groups,
)

logger = logging.getLogger(__name__)
_TRIMMED = 10_000
"""Most audit entries that one look drops."""

_AUDIT_PAGE = 500


class Outbox:
    """The event stream of one shard, as one named reader sees it.

    Each reader (Slack, a metric, another chat) has its own consumer group and gets
    every event. An event of a newer version is left unacknowledged: a reader of that
    version takes it over. What is no event is skipped, logged and counted in
    ``corrupt``, since others wait behind it.
    """

    def __init__(self, conn: Connection, keys: Keys, *, reader: str) -> None:
        self._conn = conn
        self._keys = keys
        self.reader = reader
        self.corrupt = 0

    async def prepare(self) -> None:
        """Create this reader's group unless it is there, from the first event on."""
        await make_group(self._conn, self._keys.outbox, self.reader)

    async def is_known(self) -> bool:
        """Return whether events are kept for this reader."""
        return await has_group(self._conn, self._keys, self.reader)

    async def put(self, event: Event) -> None:
        """Announce something that changes no approval, such as a finished run."""
        at_ms = await self._conn.now_ms()
        await self._conn.transaction(*announcement(self._keys, event, event, at_ms))

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
        return await self._readable(claimed(reply)), "" if after == "0-0" else after

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
        """Take new events; waits up to ``block_ms`` for the first one."""
        reply = await self._conn.command(
            "XREADGROUP", "GROUP", self.reader, consumer, "COUNT", limit,
            "BLOCK", block_ms, "STREAMS", self._keys.outbox, ">",
        )  # fmt: skip
        return await self._readable(first_stream(reply))

    async def newest(self) -> str:
        """Return the place of the newest event, for `tail`."""
        reply = await self._conn.command(
            "XREVRANGE", self._keys.outbox, "+", "-", "COUNT", 1
        )
        found = entries(reply)
        return found[0].id if found else "0-0"

    async def tail(
        self, after: str, *, block_ms: int, limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return what was announced after a place, and the place that was read to.

        Waits up to ``block_ms`` for the first event. Nothing is taken or acknowledged;
        what is not an event is left out.
        """
        reply = await self._conn.command(
            "XREAD", "COUNT", limit, "BLOCK", block_ms,
            "STREAMS", self._keys.outbox, after,
        )  # fmt: skip
        found = first_stream(reply)
        read: list[Event] = []
        for entry in found:
            # Not counted as `_readable` does: the group that reads this event reports
            # it, once.
            with suppress(KeyError, ValueError):
                read.append(_event(entry))
        return read, found[-1].id if found else after

    async def _readable(self, found: list[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            try:
                read.append(_event(entry))
            except (KeyError, ValueError):
                if is_newer(entry.values.get("e", b"")):
                    logger.info("event.newer reader=%s seq=%s", self.reader, entry.id)
                    continue
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

    async def done(self, *seqs: str) -> None:
        """Acknowledge events by their ``seq``."""
        if seqs:
            await self._conn.command("XACK", self._keys.outbox, self.reader, *seqs)


def announcement(
    keys: Keys, outbox_event: Event, audit_event: Event, at_ms: int
) -> list[list[Argument]]:
    """Return the commands that put an event into the outbox and the audit log."""
    return [
        ["XADD", keys.outbox, "*", "e", outbox_event.model_dump_json(), "at", at_ms],
        ["XADD", keys.audit, "*", "e", audit_event.model_dump_json(), "at", at_ms],
    ]


async def trim_audit(conn: Connection, keys: Keys, kept: timedelta) -> None:
    """Drop audit entries that are older than that, some thousands at most.

    Entries are dropped by whole nodes of the stream, so that some stay a little longer.
    """
    oldest_ms = await conn.now_ms() - int(kept.total_seconds() * 1000)
    # Exact trimming of a long stream would block the server; "~" with LIMIT does a part
    # of it with each sweep.
    await conn.command(
        "XTRIM", keys.audit, "MINID", "~", max(0, oldest_ms), "LIMIT", _TRIMMED
    )


async def audit_end(conn: Connection, keys: Keys) -> str:
    """Return the place of the newest audit entry, behind which `audit_log` goes on."""
    found = entries(await conn.command("XREVRANGE", keys.audit, "+", "-", "COUNT", 1))
    return found[0].id if found else "0-0"


async def audit_log(
    conn: Connection,
    keys: Keys,
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    after: str = "",
) -> AsyncGenerator[Event]:
    """Yield the audit entries of a shard, oldest first, however many there are.

    A corrupt one is logged with its place in the audit log, and left out.

    Args:
        conn: to the store.
        keys: of the shard.
        since_ms: the earliest time, in Unix milliseconds of the store's clock.
        until_ms: the time before which they were written; None for now.
        after: the ``seq`` of an entry; only what is behind it.
    """
    # Ids of a stream begin with the server's milliseconds, so they are times, too.
    start, end = str(since_ms), "+" if until_ms is None else f"({until_ms}-0"
    if after:
        start = f"({after}"
    while True:
        reply = await conn.command(
            "XRANGE", keys.audit, start, end, "COUNT", _AUDIT_PAGE
        )
        found = entries(reply)
        for entry in found:
            try:
                event = _event(entry)
            except (KeyError, ValueError):
                logger.error("audit.corrupt seq=%s", entry.id)  # noqa: TRY400 - the error may hold what was written
                continue
            yield event
        if len(found) < _AUDIT_PAGE:
            return
        # Behind the last one and not by a count: the log grows, and is trimmed,
        # meanwhile.
        start = f"({found[-1].id}"


async def newest_entries(
    conn: Connection, keys: Keys, limit: int
) -> AsyncGenerator[Event]:
    """Yield audit entries of a shard, the newest first, at most so many.

    They are read as they are asked for, so the caller may stop early. A corrupt one is
    left out; `audit_log` says which.
    """
    end, left = "+", limit
    while left > 0:
        page = min(left, _AUDIT_PAGE)
        reply = await conn.command("XREVRANGE", keys.audit, end, "-", "COUNT", page)
        found = entries(reply)
        for entry in found:
            with suppress(KeyError, ValueError):
                yield _event(entry)
        if len(found) < page:
            return
        end, left = f"({found[-1].id}", left - page


def _event(entry: Entry) -> Event:
    """Read an event; raises KeyError or ValueError for anything else."""
    return Event.model_validate_json(entry.values["e"]).with_(
        at_ms=number(entry.values["at"]), seq=entry.id
    )
