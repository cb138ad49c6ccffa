"""Know how far each reader of an outbox has come, and drop what all of them have read.

Every reader is a consumer group: the bot of each tenant, the finder of orphans. An
event stays until the last of them has acknowledged it, however many events that are: a
card, a reminder or an agent's last words may depend on it. So the outbox grows while a
reader is away, and it is said in the log which one that is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from redis.exceptions import ResponseError

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.store.clock import time_ms
from twokey.gateway.store.connection import Connection, Reply, number, text
from twokey.gateway.store.keys import RETENTION, Keys

logger = logging.getLogger(__name__)

MANY = 100_000
"""Events in an outbox from which on it is said who has not read them."""

_KEPT = timedelta(minutes=10)
"""How long an event is kept at least, for whoever looks on without being a reader."""

_TRIMMED = 10_000
"""Most events that one look drops."""

Place = tuple[int, int]
"""Where an entry stands in a stream: milliseconds, and which one of them."""


@dataclass(frozen=True)
class ReaderGroup:
    """One reader: what it took last, and the oldest event that it still needs."""

    name: str
    taken: str
    needs: Place


def place_of(entry: str) -> Place:
    """Return where an entry stands."""
    milliseconds, _, index = entry.partition("-")
    return int(milliseconds), int(index or 0)


async def reader_groups(conn: Connection, keys: Keys) -> list[ReaderGroup]:
    """Return every reader of a shard's outbox."""
    try:
        reply = await conn.command("XINFO", "GROUPS", keys.outbox)
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return []  # there is no outbox yet
        raise
    found: list[ReaderGroup] = []
    for row in cast("list[list[Reply]]", reply):
        facts = _pairs(row)
        name, taken = text(facts["name"]), text(facts["last-delivered-id"])
        needs = place_of(taken)
        if number(facts["pending"]):
            summary = await conn.command("XPENDING", keys.outbox, name)
            oldest = cast("Mapping[str, Reply]", summary)["min"]
            needs = place_of(text(oldest)) if oldest is not None else needs
        found.append(ReaderGroup(name, taken, needs))
    return found


async def trim_outbox(conn: Connection, keys: Keys) -> str:
    """Drop events that every reader has acknowledged, some thousands at most.

    Returns:
        The reader that is furthest behind when there are too many events; else "".
    """
    groups = await reader_groups(conn, keys)
    if not groups:
        return ""
    young_ms = await time_ms(conn) - int(_KEPT.total_seconds() * 1000)
    last = min(groups, key=lambda one: one.needs)
    oldest_ms, index = min(last.needs, (max(0, young_ms), 0))
    await conn.command(
        "XTRIM", keys.outbox, "MINID", "~", f"{oldest_ms}-{index}", "LIMIT", _TRIMMED
    )
    length = number(await conn.command("XLEN", keys.outbox))
    return last.name if length > MANY and last.needs[0] < young_ms else ""


async def forget_dead_readers(conn: Connection, keys: Keys) -> None:
    """Drop readers that asked for nothing for as long as approvals are kept.

    Whatever they have not read is about nothing that is still there.
    """
    for group in await reader_groups(conn, keys):
        reply = await conn.command("XINFO", "CONSUMERS", keys.outbox, group.name)
        rows = [_pairs(row) for row in cast("list[list[Reply]]", reply)]
        longest_ms = RETENTION.total_seconds() * 1000
        if rows and all(number(row["idle"]) > longest_ms for row in rows):
            await conn.command("XGROUP", "DESTROY", keys.outbox, group.name)
            logger.warning("outbox.reader_forgotten reader=%s", group.name)


def _pairs(row: list[Reply]) -> dict[str, Reply]:
    """Return what Redis says of one group or consumer by name."""
    names = (text(name) for name in row[::2])
    return dict(zip(names, row[1::2], strict=True))
