"""Measure a submit in a thread with 100,000 earlier approvals."""

from __future__ import annotations

import time
from functools import partial
from itertools import count

from bench.stats import Figure, NotMeasured, result
from bench.world import AGENT, TENANT, durable_store, in_turns, open_one
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.connection.connection import Argument, number
from keyturn.gateway.store.keys import LISTED_BYTES
from keyturn.gateway.store.store import Store

_LONG, _NEW = "long", "new"
_BATCH = 10_000


async def measure(*, is_quick: bool = False) -> Figure:
    """Submit alternately in a long and in a short thread."""
    earlier, rounds, submits = (1_000, 2, 5) if is_quick else (100_000, 8, 40)
    numbers = count()

    async def submit(thread: str, _: str = "") -> float:
        began = time.perf_counter()
        await open_one(store, next(numbers), thread=thread)
        return 1000 * (time.perf_counter() - began)

    async with durable_store() as (store, _):
        # Both have an earlier approval, which the next one supersedes.
        for thread in 2 * (_LONG, _NEW):
            await submit(thread)
        await _end_many(store, earlier)
        ways = {
            f"after {earlier:,} approvals": partial(submit, _LONG),
            "after one": partial(submit, _NEW),
        }
        with_history, without = await in_turns(ways, rounds, submits)
    return Figure(
        "Submit in a long thread",
        f"{rounds} rounds of {submits} submits each, in turns. The thread lists its "
        f"{earlier:,} earlier approvals,\nwhich have ended; each submit supersedes the "
        "one before.",
        (with_history, without),
        (
            result(
                f"submit after {earlier:,} approvals / after one, p50",
                with_history,
                without,
                at_most=1.2,
            ),
        ),
    )


async def _end_many(store: Store, ended: int) -> None:
    """List approvals as ended in the long thread, without their expired records."""
    keys = store.keys_of_tenant(TENANT)
    run = keys.run(RunRef(agent=AGENT, thread=_LONG))
    if number(await store.conn.command("EXISTS", run)) == 0:
        raise NotMeasured("The thread does not list its ended approvals.")
    now_ms = await store.conn.now_ms("")
    for start in range(0, ended, _BATCH):
        rows: list[Argument] = []
        for one in range(start, min(start + _BATCH, ended)):
            # Earlier than the newest approval, but not so early that they are dropped.
            rows += [now_ms - 10_000_000 + one, one.to_bytes(LISTED_BYTES)]
        await store.conn.command("ZADD", run, *rows)
