"""Measure a decision while a million approvals wait, and while a thousand wait."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count as counted

from bench import progress
from bench.pending import commands_of, multiply
from bench.stats import Figure, result
from bench.world import approve, durable_store, in_turns, open_one
from keyturn.gateway.store.store import Store

MANY, FEW = 1_000_000, 1_000
_NUMBERS = counted(1)


async def measure(*, is_quick: bool = False) -> Figure:
    """Decide in both stores alternately."""
    many, rounds, decisions = (2_000, 2, 5) if is_quick else (MANY, 6, 50)
    async with _filled(many) as full, _filled(FEW) as few:
        ways = {
            f"{many:,} pending": partial(_decided, full),
            f"{FEW:,} pending": partial(_decided, few),
        }
        among_many, among_few = await in_turns(ways, rounds, decisions)
    return Figure(
        "A decision among many that wait",
        f"{rounds} rounds of {decisions} decisions each, in turns, by the service.",
        (among_many, among_few),
        (
            result(
                f"decision at {many:,} pending / at {FEW:,}, p50",
                among_many,
                among_few,
                at_most=1.2,
            ),
        ),
    )


@asynccontextmanager
async def _filled(count: int) -> AsyncGenerator[Store]:
    """Open a store with this many waiting approvals."""
    progress(f"decision at scale: {count:,} approvals")
    async with durable_store() as (store, _):
        await open_one(store, 0)
        await multiply(store.conn, await commands_of(store.conn), count)
        yield store


async def _decided(store: Store, thread: str) -> float:
    # The policy limits the waiting calls of an agent, so another one asks.
    opened = await open_one(store, next(_NUMBERS), thread=thread, agent="billing")
    began = await approve(store, opened)
    return 1000 * (time.perf_counter() - began)
