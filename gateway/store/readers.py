"""Track each outbox reader's position, and trim events that all have acknowledged.

Every reader is a consumer group: the bot of each tenant. An
event stays until the last of them has acknowledged it, however many events that are: a
card, a reminder or an agent's last words may depend on it. So the outbox grows while a
reader is away, and it is said which one that is: in the log, by the metrics, by
``/readyz`` and by ``keyturn doctor``. One that is gone for good is dropped by hand, or
after `keyturn.gateway.store.keys.RETENTION`; if it comes back, it looks at everything
once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from redis.exceptions import ResponseError

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection import Connection, Reply, number, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script

MANY = 100_000
"""Events in an outbox from which on it is said who has not read them."""

_KEPT = timedelta(minutes=10)
"""How long an event is kept at least, for observers that are not readers."""

_TRIMMED = 10_000
"""Most events that one look drops."""

_CONSUMER_GONE = timedelta(minutes=10)
"""How long a process asks for nothing before it is gone; a running one asks often."""

FORGET_CONSUMERS = Script("forget_consumers")

EntryId = tuple[int, int]
"""Where an entry stands in a stream: milliseconds, and which one of them."""


@dataclass(frozen=True)
class ReaderGroup:
    """One reader: what it took last, and the oldest event that it still needs."""

    name: str
    taken: str
    needs: EntryId


@dataclass(frozen=True)
class Backlog:
    """How long an outbox is, and who keeps it from being shorter.

    Attributes:
        events: how many it holds.
        reader: who is furthest behind; "" where everybody is up to date.
    """

    events: int
    reader: str = ""

    @property
    def problem(self) -> str:
        """Return what to do about a long outbox, as a sentence; "" for nothing."""
        if self.events <= MANY or not self.reader:
            return ""
        return (
            f"The outbox holds {self.events:,} events because the reader "
            f"{self.reader!r} has not read them: start what reads as it, or run "
            "'keyturn outbox drop' if it is gone for good."
        )


@dataclass(frozen=True)
class ReaderState:
    """One reader, for people.

    Attributes:
        name: of the reader.
        unread: events that it has not acknowledged, as far as the store knows.
        idle_ms: how long no process has asked for events as this reader; None: never.
            Redis before 7.2 counts from when a process was last given one.
    """

    name: str
    unread: int
    idle_ms: int | None


def entry_id(entry: str) -> EntryId:
    """Return where an entry stands."""
    milliseconds, _, index = entry.partition("-")
    return int(milliseconds), int(index or 0)


async def has_group(conn: Connection, keys: Keys, name: str) -> bool:
    """Return whether somebody reads the outbox under this name."""
    return any(text(one["name"]) == name for one in await _groups(conn, keys))


async def make_group(conn: Connection, stream: str, name: str) -> None:
    """Let a group read a stream from its first entry on, unless it does."""
    try:
        await conn.command("XGROUP", "CREATE", stream, name, "0", "MKSTREAM")
    except StoreUnavailable as error:
        # A refusal is BUSYGROUP: the group is there, perhaps made by another process
        # just now.
        if not isinstance(error.__cause__, ResponseError):
            raise


async def reader_groups(conn: Connection, keys: Keys) -> list[ReaderGroup]:
    """Return every reader of a tenant's outbox."""
    found: list[ReaderGroup] = []
    for facts in await _groups(conn, keys):
        name, taken = text(facts["name"]), text(facts["last-delivered-id"])
        needs = entry_id(taken)
        # What was taken and not acknowledged may stand far behind what was delivered
        # last.
        if number(facts["pending"]):
            summary = await conn.command("XPENDING", keys.outbox, name)
            oldest = cast("Mapping[str, Reply]", summary)["min"]
            needs = entry_id(text(oldest)) if oldest is not None else needs
        found.append(ReaderGroup(name, taken, needs))
    return found


async def trim_outbox(conn: Connection, keys: Keys) -> Backlog:
    """Drop events that every reader has acknowledged, some thousands at most.

    Returns:
        What is left.
    """
    groups = await reader_groups(conn, keys)
    # Nobody reads yet. A first reader begins with the first event, so none is dropped.
    if groups:
        # Compared as numbers: as texts "9-0" would come after "10-0".
        needs = min(one.needs for one in groups)
        oldest_ms, index = min(needs, (await _young_ms(conn, keys), 0))
        first = f"{oldest_ms}-{index}"
        await conn.command("XTRIM", keys.outbox, "MINID", "~", first, "LIMIT", _TRIMMED)
    return await backlog(conn, keys)


async def backlog(conn: Connection, keys: Keys) -> Backlog:
    """Return how long an outbox is, and who keeps it from being shorter."""
    groups = await reader_groups(conn, keys)
    events = number(await conn.command("XLEN", keys.outbox))
    last = min(groups, key=lambda one: one.needs, default=None)
    # A reader that is up to date is not to blame for what is kept for those that look
    # on.
    if last is None or last.needs[0] >= await _young_ms(conn, keys):
        return Backlog(events)
    return Backlog(events, last.name)


async def _young_ms(conn: Connection, keys: Keys) -> int:
    return max(0, await conn.now_ms(keys.outbox) - int(_KEPT.total_seconds() * 1000))


async def reader_states(conn: Connection, keys: Keys) -> list[ReaderState]:
    """Return every reader of an outbox, with how far it is."""
    found: list[ReaderState] = []
    for facts in await _groups(conn, keys):
        name = text(facts["name"])
        # The store does not know the lag where entries in the middle are gone.
        unread = number(facts["pending"]) + number(facts.get("lag"))
        idle = await _idle_ms(conn, keys, name)
        found.append(ReaderState(name, unread, min(idle, default=None)))
    return sorted(found, key=lambda one: one.name)


async def drop_reader(conn: Connection, keys: Keys, name: str) -> bool:
    """Drop a reader that is gone for good; False when there is none of this name."""
    return bool(number(await conn.command("XGROUP", "DESTROY", keys.outbox, name)))


async def drop_idle_readers(
    conn: Connection,
    keys: Keys,
    *,
    idle_ms: int,
    prefix: str = "",
    kept: Collection[str] = (),
) -> list[str]:
    """Drop the readers under a prefix of which no process asked for so long.

    Readers that are ``kept`` are not dropped.

    Returns:
        Their names. Who reads as one of them again has to look at everything once.
    """
    dropped: list[str] = []
    for group in await _groups(conn, keys):
        name = text(group["name"])
        if not name.startswith(prefix) or name in kept:
            continue
        idle = await _idle_ms(conn, keys, name)
        # A group without a consumer was made this moment, by a new reader.
        if idle and min(idle) > idle_ms:
            await drop_reader(conn, keys, name)
            dropped.append(name)
    return dropped


async def forget_consumers(
    conn: Connection, keys: Keys, *, idle: timedelta = _CONSUMER_GONE
) -> int:
    """Forget processes that are gone among the readers of jobs and events.

    Each process reads under a name of its own, which the store keeps for ever
    otherwise. One that took something and did not finish it stays until another process
    took that over; one that comes back is known again with its next request.

    Returns:
        How many were forgotten.
    """
    idle_ms = int(idle.total_seconds() * 1000)
    count = 0
    for stream in (keys.jobs, keys.outbox):
        reply = await FORGET_CONSUMERS(conn, stream=stream, idle_ms=idle_ms)
        count += number(reply[1])
    return count


async def _idle_ms(conn: Connection, keys: Keys, name: str) -> list[int]:
    reply = await conn.command("XINFO", "CONSUMERS", keys.outbox, name)
    return [number(one["idle"]) for one in _rows(reply)]


async def _groups(conn: Connection, keys: Keys) -> list[dict[str, Reply]]:
    try:
        found = _rows(await conn.command("XINFO", "GROUPS", keys.outbox))
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return []  # there is no outbox yet
        raise
    # One that somebody else made reads nothing, and keeps nothing from being dropped.
    return [one for one in found if _is_text(one["name"])]


def _is_text(name: Reply) -> bool:
    with suppress(ValueError):
        text(name)
        return True
    return False


def _rows(reply: Reply) -> list[dict[str, Reply]]:
    """Return what Redis says of groups or consumers, each fact by its name."""
    return [
        dict(zip(map(text, row[::2]), row[1::2], strict=True))
        for row in cast("list[list[Reply]]", reply)
    ]
