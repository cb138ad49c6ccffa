"""Measure a submit in a thread with 100,000 earlier approvals."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.pending import AGENT, TENANT, agents_of, open_one
from bench.stats import Figure, Measured, NotMeasured, ratio
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.connection.connection import Argument, number
from keyturn.gateway.store.keys import LISTED_BYTES
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.store import Store

TITLE = "Submit in a long thread"

_LONG, _NEW = "long", "new"
_BATCH = 10_000


async def measure(*, is_quick: bool = False) -> Figure:
    """Submit alternately in a long and in a short thread."""
    return await measured(*((1_000, 2, 5) if is_quick else (100_000, 8, 40)))


async def measured(earlier: int, rounds: int, submits: int) -> Figure:
    """Submit in both threads each round, with `earlier` approvals in the long one."""
    long: list[tuple[float, ...]] = []
    new: list[tuple[float, ...]] = []
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        async with open_store(None, Path(folder)) as store:
            # Both have an earlier approval, which the next one supersedes.
            for thread in (_LONG, _NEW):
                await _taken(store, thread, 2)
            await _end_many(store, earlier)
            for turn in range(rounds):
                for rows, thread in ((long, _LONG), (new, _NEW))[:: (-1) ** turn]:
                    first = 1000 * (turn + 1) + 500 * (thread == _NEW)
                    rows.append(await _taken(store, thread, submits, first=first))
    with_history = Measured(f"after {earlier:,} approvals", "ms", tuple(long))
    without = Measured("after one", "ms", tuple(new))
    return Figure(
        TITLE,
        f"{rounds} rounds of {submits} submits each, in turns. The thread lists its "
        f"{earlier:,} earlier approvals,\nwhich have ended; each submit supersedes the "
        "one before.",
        (with_history, without),
        (
            ratio(
                f"submit after {earlier:,} approvals / after one, p50",
                with_history,
                without,
                at_most=1.2,
            ),
        ),
    )


async def _taken(
    store: Store, thread: str, count: int, *, first: int = 0
) -> tuple[float, ...]:
    agents, taken = agents_of(store), list[float]()
    for one in range(first, first + count):
        began = time.perf_counter()
        await open_one(store, agents, one, thread=thread)
        taken.append(1000 * (time.perf_counter() - began))
    return tuple(taken)


async def _end_many(store: Store, count: int) -> None:
    """List approvals as ended in the long thread, without their expired records."""
    keys = store.keys_of_tenant(TENANT)
    run = keys.run(RunRef(agent=AGENT, thread=_LONG))
    if number(await store.conn.command("EXISTS", run)) == 0:
        raise NotMeasured("The thread does not list its ended approvals.")
    now_ms = await store.conn.now_ms("")
    for start in range(0, count, _BATCH):
        rows: list[Argument] = []
        for one in range(start, min(start + _BATCH, count)):
            # Earlier than the newest approval, but not so early that they are dropped.
            rows += [now_ms - 10_000_000 + one, one.to_bytes(LISTED_BYTES)]
        await store.conn.command("ZADD", run, *rows)
