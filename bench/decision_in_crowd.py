"""Measure the latency from a decision to its tool while a thousand threads wait.

The threads of one agent wait for people, each with one call. Decisions then arrive at a
fixed rate, independent of the start of earlier tools, as from many reviewers. Each is
measured from the call of `ReviewService.decide` to the first line of its tool. The
store is durable and the checkpoints are in SQLite.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.decision_to_tool import Subject, subjects
from bench.payments_stub import PaymentsStub
from bench.stats import Figure, Measured, result
from keyturn.gateway.garbage_collection import spare_what_is_there

PER_SECOND = 20
P99 = 0.99
AMONG_MANY_MS = 60.0
"""The target for 99 of 100 decisions."""

_AT_ONCE = 8
"""How many agents submit concurrently before the measurement."""
_TIMEOUT_S = 300.0


async def measure(*, is_quick: bool = False) -> Figure:
    """Decide among many waiting threads."""
    threads, rounds, decisions = (10, 1, 5) if is_quick else (1000, 3, 100)
    # Like 'keyturn run' and 'keyturn gateway'.
    spare_what_is_there()
    async with asyncio.timeout(_TIMEOUT_S), subjects() as (stub, (ours, _)):
        waiting = [f"waiting {n}" for n in range(threads)]
        await _ask(ours, waiting)
        rows: list[tuple[float, ...]] = []
        for _ in range(rounds):
            # New threads replace them, so that the number of waiting ones is constant.
            batch, waiting = waiting[:decisions], waiting[decisions:]
            rows.append(await _decided(ours, stub, batch))
            again = [f"{order} again" for order in batch]
            await _ask(ours, again)
            waiting += again
    taken = Measured("Keyturn", "ms", tuple(rows))
    return Figure(
        "Decision to tool start, among many that wait",
        f"{rounds} rounds of {decisions} decisions, {PER_SECOND} a "
        f"second, while {threads} threads wait.",
        (taken,),
        (
            result(
                f"decision to tool p99, {threads:,} waiting",
                taken,
                share=P99,
                at_most=AMONG_MANY_MS,
            ),
            result(f"decision to tool p50, {threads:,} waiting", taken),
        ),
    )


async def _ask(ours: Subject, orders: Sequence[str]) -> None:
    for first in range(0, len(orders), _AT_ONCE):
        some = orders[first : first + _AT_ONCE]
        await asyncio.gather(*(ours.propose(order) for order in some))


async def _decided(
    ours: Subject, stub: PaymentsStub, orders: Sequence[str]
) -> tuple[float, ...]:
    """Decide at a fixed rate; return the time to each tool, in ms."""
    start = time.perf_counter()

    async def one(place: int, order: str) -> float:
        begun = stub.expect(order)
        await asyncio.sleep(max(0.0, start + place / PER_SECOND - time.perf_counter()))
        decided = await ours.decide(order)
        taken = await begun - decided
        await ours.wait_until_idle(order)
        return taken * 1000

    return tuple(
        await asyncio.gather(*(one(n, order) for n, order in enumerate(orders)))
    )
