"""Twenty processes use one standing approval at once; no bound is ever exceeded."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from keyturn.gateway.approvals.standing import used_micro
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.races.asking_processes import asking
from tests.races.standing_process import serve
from tests.service.harness import ANA
from tests.service.standing import allowed, allowing, chosen, standing_now

PROCESSES = 20
ROUNDS = size(deep=500, short=4)
USES, TOTAL = 10, 500

AMOUNTS = (30, 80)
"""Of 30 the ten uses are fewer, of 80 the total: 10 of 300, and 6 of 480."""


@pytest.mark.timeout(1800)
async def test_twenty_processes_stay_in_bounds(store: Store, valkey_url: str) -> None:
    harness = allowing(store)
    async with AsyncExitStack() as opened:
        processes = [
            await opened.enter_async_context(asking(serve, valkey_url, f"p{n}"))
            for n in range(PROCESSES)
        ]
        for round_ in range(ROUNDS):
            customer, amount = f"c{round_}", AMOUNTS[round_ % 2]
            call: JsonObject = {
                "customer": customer,
                "amount": 1,
                "order": f"{customer}-first",
            }
            standing = await allowed(
                harness,
                ("process_refund", call),
                chosen(uses=USES, each=100, total=TOTAL),
                thread=f"first {customer}",
            )
            for process in processes:
                process.go(f"{customer} {amount}")
            rows = [await process.answer() for process in processes]

            ran = [row for row in rows if row["kind"] == VerdictKind.RUN]
            after = await standing_now(harness, standing)
            # As many as there is room for, and each counted once.
            assert len(ran) == min(USES, TOTAL // amount)
            assert {use.item for use in after.uses} == {row["id"] for row in ran}
            assert len(after.uses) == len(ran)
            assert used_micro(after) == amount * len(ran) * 10**6
            await harness.reviews.standing.revoke(standing.id, ANA)
