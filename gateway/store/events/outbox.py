"""The outbox: a stream of events, consumed at least once, and its readers.

Each event is also in the audit log. The outbox drops events after all readers took
them. A program that was offline catches up from the audit log (`AuditLog.follow`), any
number of times.

Every reader, such as the bot of a tenant, is a consumer group. An event stays until all
readers have acknowledged it: a card, a reminder or an agent's last message may depend
on it. So the outbox grows while a reader is away. The log, the metrics, ``/readyz`` and
``keyturn doctor`` name that reader. A reader that is gone for good is dropped by hand,
or after `keyturn.gateway.store.keys.RETENTION`. If it comes back, it checks all cards
once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from redis.exceptions import ResponseError

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import (
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
from keyturn.gateway.store.sealing.event_seals import decrypted_event, read_seal
from keyturn.gateway.store.sealing.sealing import Sealed, Sealing, write_if

MANY = 100_000
"""Size of an outbox from which the slowest reader is reported."""

_KEPT_MS = 600_000
"""Minimum lifetime of an event, for observers that are not readers."""

_TRIMMED = 10_000
"""Limit of events dropped in one step."""

EntryId = tuple[int, int]
"""An entry's position in a stream: milliseconds, and a sequence number."""


@dataclass(frozen=True)
class ReaderState:
    """A reader's progress.

    Attributes:
        name: the reader's name.
        taken: position of its latest event.
        needs: position of the oldest event that it still needs.
        pending: number of delivered and unacknowledged events.
        unread: number of unacknowledged events, as reported by the store.
        idle_ms: time since a process last polled as this reader; None: never. Redis
            before 7.2 counts from the last event that was delivered.
    """

    name: str
    taken: str
    needs: EntryId
    pending: int
    unread: int
    idle_ms: int | None


@dataclass(frozen=True)
class Backlog:
    """Length of an outbox, and the slowest reader.

    Attributes:
        events: number of events.
        reader: name of the slowest reader; "" if all are up to date.
        oldest_ms: age of the oldest event that a reader has not acknowledged; 0: none.
    """

    events: int
    reader: str = ""
    oldest_ms: int = 0

    @property
    def problem(self) -> str:
        """Return a sentence about a long outbox with the next step; "" for none."""
        if self.events <= MANY or not self.reader:
            return ""
        return (
            f"The outbox holds {self.events:,} events because the reader "
            f"{self.reader!r} has not read them: start what reads as it, or run "
            "'keyturn outbox drop' if it is gone for good."
        )


def entry_id(entry: str) -> EntryId:
    """Return the position of an entry."""
    milliseconds, _, index = entry.partition("-")
    return int(milliseconds), int(index or 0)


async def make_group(conn: Connection, stream: str, name: str) -> None:
    """Create a group at the start of a stream if it is missing."""
    try:
        await conn.command("XGROUP", "CREATE", stream, name, "0", "MKSTREAM")
    except StoreUnavailable as error:
        # An error reply is BUSYGROUP: the group exists, perhaps created by another
        # process just now.
        if not isinstance(error.__cause__, ResponseError):
            raise


async def reader_states(conn: Connection, keys: Keys) -> list[ReaderState]:
    """Return every reader of a tenant's outbox, by name."""
    groups = await _groups(conn, keys)
    found = [await _state(conn, keys, facts) for facts in groups]
    return sorted(found, key=lambda one: one.name)


async def _state(
    conn: Connection, keys: Keys, facts: Mapping[str, Reply]
) -> ReaderState:
    name, taken = text(facts["name"]), text(facts["last-delivered-id"])
    pending, needs = number(facts["pending"]), entry_id(taken)
    # Unacknowledged entries may be far behind the last delivered one.
    if pending:
        summary = await conn.command("XPENDING", keys.outbox, name)
        oldest = cast("Mapping[str, Reply]", summary)["min"]
        needs = entry_id(text(oldest)) if oldest is not None else needs
    reply = await conn.command("XINFO", "CONSUMERS", keys.outbox, name)
    # The lag is unknown if entries in the middle were deleted.
    unread = pending + number(facts.get("lag"))
    idle_ms = min((number(one["idle"]) for one in _rows(reply)), default=None)
    return ReaderState(name, taken, needs, pending, unread, idle_ms)


async def trim_outbox(conn: Connection, keys: Keys) -> Backlog:
    """Drop events that every reader has acknowledged, some thousands at most.

    Returns:
        The remaining outbox.
    """
    groups = await reader_states(conn, keys)
    # No reader yet: keep all events, since the first reader starts with the first one.
    if groups:
        # Compared as numbers: as strings, "9-0" is greater than "10-0".
        needs = min(one.needs for one in groups)
        oldest_ms, index = min(needs, (await _young_ms(conn, keys), 0))
        first = f"{oldest_ms}-{index}"
        await conn.command("XTRIM", keys.outbox, "MINID", "~", first, "LIMIT", _TRIMMED)
    return await backlog(conn, keys)


async def backlog(conn: Connection, keys: Keys) -> Backlog:
    """Return the length of an outbox, and the slowest reader."""
    groups = await reader_states(conn, keys)
    events = number(await conn.command("XLEN", keys.outbox))
    # A reader needs its oldest pending event, or else the one after the last it took.
    last = min(groups, key=lambda one: (one.needs, not one.pending), default=None)
    if last is None:
        return Backlog(events)
    first = "-".join(map(str, last.needs))
    first = first if last.pending else f"({first}"
    reply = await conn.command("XRANGE", keys.outbox, first, "+", "COUNT", 1)
    now_ms = await conn.now_ms(keys.outbox)
    waiting = [entry_id(text(row[0]))[0] for row in cast("list[list[Reply]]", reply)]
    oldest_ms = max(0, now_ms - waiting[0]) if waiting else 0
    # Events younger than the minimum lifetime stay anyway; no reader causes that.
    is_slow = now_ms - last.needs[0] > _KEPT_MS
    return Backlog(events, last.name if is_slow else "", oldest_ms)


async def _young_ms(conn: Connection, keys: Keys) -> int:
    return max(0, await conn.now_ms(keys.outbox) - _KEPT_MS)


async def drop_reader(conn: Connection, keys: Keys, name: str) -> bool:
    """Drop a reader that is gone for good; False if there is no such reader."""
    return bool(number(await conn.command("XGROUP", "DESTROY", keys.outbox, name)))


async def drop_idle_readers(
    conn: Connection,
    keys: Keys,
    *,
    idle_ms: int,
    prefix: str = "",
    kept: Collection[str] = (),
) -> list[str]:
    """Drop idle readers whose names have a prefix.

    Readers in ``kept`` stay.

    Returns:
        Their names. Such a reader has to check all cards when it comes back.
    """
    dropped: list[str] = []
    for one in await reader_states(conn, keys):
        # A group without consumers was just created by a new reader.
        is_idle = one.idle_ms is not None and one.idle_ms > idle_ms
        if is_idle and one.name.startswith(prefix) and one.name not in kept:
            await drop_reader(conn, keys, one.name)
            dropped.append(one.name)
    return dropped


async def _groups(conn: Connection, keys: Keys) -> list[dict[str, Reply]]:
    try:
        found = _rows(await conn.command("XINFO", "GROUPS", keys.outbox))
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return []  # there is no outbox yet
        raise
    # Groups of other programs may have names that are no text.
    return [one for one in found if cast("bytes", one["name"]).isascii()]


def _rows(reply: Reply) -> list[dict[str, Reply]]:
    """Parse Redis's description of groups or consumers, by field name."""
    return [
        dict(zip(map(text, row[::2]), row[1::2], strict=True))
        for row in cast("list[list[Reply]]", reply)
    ]


logger = logging.getLogger(__name__)


class Outbox:
    """The event stream of one tenant for one named reader.

    Each reader (Slack, a metric, another chat) has a consumer group and gets every
    event. Invalid entries would block later ones, so they are skipped, reported and
    counted in ``corrupt``.
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
        """Create this reader's group if it is missing, starting at the first event."""
        await make_group(self._conn, self._keys.outbox, self.reader)

    async def is_known(self) -> bool:
        """Return whether this reader has a group, so that its events are kept."""
        groups = await _groups(self._conn, self._keys)
        return any(text(one["name"]) == self.reader for one in groups)

    async def put(self, event: Event) -> None:
        """Announce an event without a change of an approval, such as a finished run."""
        await write_if(self._conn, self._keys, [], outbox=[event], audit=[event])

    async def left(
        self, consumer: str, *, start: str = "0-0", limit: int = 500
    ) -> tuple[list[Event], str]:
        """Return a page of events that any consumer took and did not acknowledge.

        Returns:
            The events in order, and the start of the next page; "" after the last.
        """
        reply = await self._conn.command(
            "XAUTOCLAIM", self._keys.outbox, self.reader, consumer, 0,
            start, "COUNT", limit,
        )  # fmt: skip
        after = text(cast("list[Reply]", reply)[0])
        found = claimed(reply)
        self._taken = max((self._taken, *(one.id for one in found)), key=entry_id)
        return await self._readable(found), "" if after == "0-0" else after

    async def unread_ms(self) -> int:
        """Return the age of the oldest event that this reader has not taken."""
        groups = await reader_states(self._conn, self._keys)
        taken = next((one.taken for one in groups if one.name == self.reader), "0-0")
        # "(" makes the start exclusive.
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
        """Take new events; wait up to ``block_ms`` for the first one.

        Only one process at a time takes the events of a reader, one page at a time.
        """
        resent = self._conn.resent
        reply = await self._conn.command(
            "XREADGROUP", "GROUP", self.reader, consumer, "COUNT", limit,
            "BLOCK", block_ms, "STREAMS", self._keys.outbox, ">",
        )  # fmt: skip
        if self._conn.resent != resent:
            # The replies to earlier requests may be lost. The server counts their
            # events as taken, so `>` would never return them again.
            ms, index = entry_id(self._taken)
            start = f"{ms}-{index + 1}"
            lost, _ = await self.left(consumer, start=start, limit=limit * 9)
            return lost
        found = first_stream(reply)
        self._taken = max((self._taken, *(one.id for one in found)), key=entry_id)
        return await self._readable(found)

    async def _readable(self, found: list[Entry]) -> list[Event]:
        read: list[Event] = []
        for entry in found:
            try:
                read.append(event_in(self._conn, self._keys, entry))
            except (KeyError, ValueError) as error:
                if isinstance(error, KeyError | NotSealed):
                    # Report it before it is acknowledged: others may need it.
                    junk = b"\n".join(entry.values.values())
                    await self._sealing.refuse(self._keys, Sealed.EVENT, junk)
                self.corrupt += 1
                logger.error(  # noqa: TRY400 - the error may hold what was written
                    "event.corrupt reader=%s seq=%s count=%d",
                    self.reader,
                    entry.id,
                    self.corrupt,
                )
                # Acknowledged anyway: an entry that stays pending would keep the
                # outbox from being trimmed.
                await self.done(entry.id)
        return read

    async def done(self, *seqs: str) -> None:
        """Acknowledge events by their ``seq``."""
        if seqs:
            await self._conn.command("XACK", self._keys.outbox, self.reader, *seqs)


class NotSealed(ValueError):
    """An outbox entry that another program wrote or changed."""


def event_in(conn: Connection, keys: Keys, entry: Entry) -> Event:
    """Verify and parse the event in an outbox entry.

    Raises:
        KeyError: the entry has no event.
        NotSealed: its seal is invalid.
        ValueError: it cannot be parsed.
    """
    body = decrypted_event(conn, keys, entry.values["e"])
    # Surrogates: bytes other than UTF-8 fail the check and must not raise.
    event, seal = (
        one.decode("utf-8", "surrogateescape")
        for one in (body, entry.values.get("s", b""))
    )
    if read_seal(conn, keys, event, seal) is not SealState.SEALED:
        raise NotSealed
    return Event.model_validate_json(body).with_(
        at_ms=number(entry.values["at"]), seq=entry.id
    )
