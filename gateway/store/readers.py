"""Track each outbox reader's position, and trim events that all have acknowledged.

Every reader is a consumer group: the bot of each tenant, the finder of orphans. An
event stays until the last of them has acknowledged it, however many events that are: a
card, a reminder or an agent's last words may depend on it. So the outbox grows while a
reader is away, and it is said in the log which one that is. One that is gone for good
is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from redis.exceptions import ResponseError

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.connection import Connection, Reply, number, text
from twokey.gateway.store.keys import Keys

MANY = 100_000
"""Events in an outbox from which on it is said who has not read them."""

_KEPT = timedelta(minutes=10)
"""How long an event is kept at least, for observers that are not readers."""

_TRIMMED = 10_000
"""Most events that one look drops."""

EntryId = tuple[int, int]
"""Where an entry stands in a stream: milliseconds, and which one of them."""


@dataclass(frozen=True)
class ReaderGroup:
    """One reader: what it took last, and the oldest event that it still needs."""

    name: str
    taken: str
    needs: EntryId


def entry_id(entry: str) -> EntryId:
    """Return where an entry stands."""
    milliseconds, _, index = entry.partition("-")
    return int(milliseconds), int(index or 0)


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
    """Return every reader of a shard's outbox."""
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


async def trim_outbox(conn: Connection, keys: Keys) -> str:
    """Drop events that every reader has acknowledged, some thousands at most.

    Returns:
        The reader that is furthest behind when there are too many events; else "".
    """
    groups = await reader_groups(conn, keys)
    # Nobody reads yet. A first reader begins with the first event, so none is dropped.
    if not groups:
        return ""
    young_ms = await conn.now_ms() - int(_KEPT.total_seconds() * 1000)
    # Compared as numbers: as texts "9-0" would come after "10-0".
    last = min(groups, key=lambda one: one.needs)
    oldest_ms, index = min(last.needs, (max(0, young_ms), 0))
    await conn.command(
        "XTRIM", keys.outbox, "MINID", "~", f"{oldest_ms}-{index}", "LIMIT", _TRIMMED
    )
    length = number(await conn.command("XLEN", keys.outbox))
    # A reader that is up to date is not to blame for what is kept for those that look
    # on.
    return last.name if length > MANY and last.needs[0] < young_ms else ""


async def drop_idle_readers(
    conn: Connection, keys: Keys, *, idle_ms: int, prefix: str = ""
) -> list[str]:
    """Drop the readers under a prefix of which no process asked for so long.

    Returns:
        Their names. Who reads as one of them again has to look at everything once.
    """
    dropped: list[str] = []
    for group in await _groups(conn, keys):
        name = text(group["name"])
        if not name.startswith(prefix):
            continue
        reply = await conn.command("XINFO", "CONSUMERS", keys.outbox, name)
        idle = [number(one["idle"]) for one in _rows(reply)]
        # A group without a consumer was made this moment, by a new reader.
        if idle and min(idle) > idle_ms:
            await conn.command("XGROUP", "DESTROY", keys.outbox, name)
            dropped.append(name)
    return dropped


async def _groups(conn: Connection, keys: Keys) -> list[dict[str, Reply]]:
    try:
        return _rows(await conn.command("XINFO", "GROUPS", keys.outbox))
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return []  # there is no outbox yet
        raise


def _rows(reply: Reply) -> list[dict[str, Reply]]:
    """Return what Redis says of groups or consumers, each fact by its name."""
    return [
        dict(zip(map(text, row[::2]), row[1::2], strict=True))
        for row in cast("list[list[Reply]]", reply)
    ]
