"""Four processes ask for refunds of one customer at once; one is below escalate."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.store.store import Store
from tests.races.asking_processes import asking
from tests.races.window_process import AMOUNT, serve
from tests.service.windowed import refunded, windowed
from tests.transports import Transport, place_of

PROCESSES, CALLS, ROUNDS = 4, 2, 60


@pytest.mark.timeout(600)
async def test_of_nine_900s_of_four_processes_one_stays_below_escalate(
    store: Store, transport: Transport
) -> None:
    harness = windowed(store)
    place = await place_of(harness)
    async with AsyncExitStack() as opened:
        processes = [
            await opened.enter_async_context(asking(serve, place, f"a{n}", CALLS))
            for n in range(PROCESSES)
        ]
        for customer in (f"c{n}" for n in range(transport.share(ROUNDS))):
            for process in processes:
                process.go(customer)
            rows = [await process.answer() for process in processes]

            shared = [row[0] for row in rows]
            verdicts = [shared[0], *(one for row in rows for one in row[1:])]
            below = [one for one in verdicts if one["tier"] == Tier.APPROVE]
            held = [one for one in verdicts if one["kind"] == VerdictKind.HOLD]
            assert shared == [shared[0]] * PROCESSES, "one turn had several verdicts"
            assert len(verdicts) == PROCESSES * CALLS + 1
            assert len(below) == 1
            # A call that would exceed 5,000 is denied and counts no longer.
            assert await refunded(harness, customer) == AMOUNT * len(held)
