"""Measure a decision while a million approvals wait, and while a thousand wait."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import SECRETS, progress
from bench.both_agents import ANA
from bench.clicks import POLICY
from bench.pending import TENANT, agents_of, commands_of, multiply, open_one
from bench.stats import Figure, Measured, NotMeasured, ratio
from keyturn.gateway.approvals.decisions import Approve, Decided
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.store import Store
from tests.approvals.builders import click_on

TITLE = "A decision among many that wait"
MANY, FEW = 1_000_000, 1_000


async def measure(*, is_quick: bool = False) -> Figure:
    """Decide in both stores alternately."""
    return await measured(*((2_000, 2, 5) if is_quick else (MANY, 6, 50)))


async def measured(many: int, rounds: int, decisions: int) -> Figure:
    """Decide among `many` approvals and among `FEW`, several times a round."""
    crowded: list[tuple[float, ...]] = []
    small: list[tuple[float, ...]] = []
    async with _filled(many) as full, _filled(FEW) as few:
        for turn in range(rounds):
            progress(f"decision at scale: round {turn + 1} of {rounds}")
            for store, row in ((full, crowded), (few, small))[:: (-1) ** turn]:
                row.append(await _decided(store, turn * decisions, decisions))
    among_many = Measured(f"{many:,} pending", "ms", tuple(crowded))
    among_few = Measured(f"{FEW:,} pending", "ms", tuple(small))
    return Figure(
        TITLE,
        f"{rounds} rounds of {decisions} decisions each, in turns, by the service.",
        (among_many, among_few),
        (
            ratio(
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
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        async with open_store(None, Path(folder), secrets=SECRETS) as store:
            await open_one(store, agents_of(store), 0)
            await multiply(store.conn, await commands_of(store.conn), count)
            yield store


async def _decided(store: Store, first: int, count: int) -> tuple[float, ...]:
    keys, reviews = store.keys_of_tenant(TENANT), ReviewService(store, lambda: POLICY)
    taken: list[float] = []
    for number in range(first + 1, first + 1 + count):
        thread = f"decided-{number}"
        await open_one(store, agents_of(store), number, thread=thread)
        run = RunRef(agent="support", thread=thread)
        [asked] = await store.approvals.of_run(keys, run)
        loaded = await reviews.read_as_of_now(asked.id)
        assert loaded is not None, asked
        click = click_on(loaded.approval)
        began = time.perf_counter()
        outcome = await reviews.decide(click, Approve(), ANA)
        taken.append(1000 * (time.perf_counter() - began))
        if not isinstance(outcome, Decided):
            raise NotMeasured(f"A call was not decided: {outcome!r}.")
    return tuple(taken)
