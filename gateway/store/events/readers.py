"""Track each outbox reader's position, and trim events that all have acknowledged.

Every reader, such as the bot of a tenant, is a consumer group. An event stays until all
readers have acknowledged it: a card, a reminder or an agent's last message may depend
on it. So the outbox grows while a reader is away. The log, the metrics, ``/readyz`` and
``keyturn doctor`` name that reader. A reader that is gone for good is dropped by hand,
or after `keyturn.gateway.store.keys.RETENTION`. If it comes back, it checks all cards
once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from redis.exceptions import ResponseError

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection, Reply, number, text
from keyturn.gateway.store.keys import Keys

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


async def has_group(conn: Connection, keys: Keys, name: str) -> bool:
    """Return whether the outbox has a reader of this name."""
    return any(text(one["name"]) == name for one in await _groups(conn, keys))


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
