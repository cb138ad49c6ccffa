"""Measure the memory of one pending approval, in all of its keys.

Events are counted separately: they leave the outbox once its readers have read them.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict

from bench.pending import keys_in
from bench.stats import Figure, Measured, result
from bench.world import ARGS_BYTES, arguments, durable_store, open_one
from keyturn.gateway.store.connection.connection import Connection, number

_STREAMS = {"ev", "au"}
_KIND = re.compile(rb"^tk:(?:\{[^}]+\}:)?(?:[0-9a-f]{32}:)?(\w+)")


async def measure(*, is_quick: bool = False) -> Figure:
    """Open approvals through the service, and ask the server for their memory."""
    count = 200 if is_quick else 2_000
    async with durable_store() as (store, _):
        for one in range(count):
            await open_one(store, one)
        ours = await bytes_by_kind(store.conn, count)
    events = sum(ours.pop(kind, 0.0) for kind in _STREAMS)
    record = _measured("all keys of a pending approval", sum(ours.values()))
    kinds = [_measured(f"of it {kind}", size) for kind, size in [*ours.items()][:8]]
    return Figure(
        "Memory of a pending approval",
        f"{count:,} approvals of one call each, in separate threads, arguments of "
        f"{ARGS_BYTES} bytes;\nMEMORY USAGE of every key.",
        (record, _measured("its event, in outbox and audit log", events), *kinds),
        (
            result(
                "bytes per pending approval",
                record,
                at_most=2200,
                limit=f"its arguments alone, compressed by zlib: {_compressed()} B",
            ),
        ),
    )


def _compressed() -> int:
    return len(zlib.compress(json.dumps(arguments(0)).encode(), 9))


def _measured(name: str, size: float) -> Measured:
    return Measured(name, "B", ((size,),))


async def bytes_by_kind(conn: Connection, count: int) -> dict[str, float]:
    """Return the bytes of each kind of key, for one of `count` approvals."""
    found = defaultdict[str, float](float)
    for key in await keys_in(conn):
        kind = _KIND.match(key)
        size = number(await conn.command("MEMORY", "USAGE", key, "SAMPLES", "0"))
        found[kind[1].decode() if kind else "other"] += size / count
    return dict(sorted(found.items(), key=lambda row: -row[1]))
