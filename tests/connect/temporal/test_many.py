"""Many workflows wait for people without holding anything."""

from __future__ import annotations

import asyncio
import time

import pytest

from keyturn.connect.gate import Listing, each_listed
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.approvals.decisions import Approve
from tests.conftest import eventually
from tests.connect.temporal.conftest import World
from tests.connect.temporal.flows import TOOL, Refund
from tests.levels import size


@pytest.mark.usefixtures("only_dev")
async def test_many_workflows_wait_on_one_connection(world: World) -> None:
    count = size(deep=1000, short=20)
    world.stack.api.limits = RateLimits(10**6)
    async with world.worker():
        handles = await asyncio.gather(
            *(world.start(Refund.run, TOOL, {"amount": n}) for n in range(count))
        )

        async def all_wait() -> bool:
            found = [one async for one in each_listed(world.gate, Listing(limit=200))]
            return len(found) == count

        async def holds_none() -> bool:
            described = await handles[-1].describe()
            return not described.raw_description.pending_activities

        await eventually(all_wait, within_s=120)
        await eventually(holds_none)
        waiting = world.stack.api.limits._waits.total()  # pyright: ignore[reportPrivateUsage] - its count
        began = time.perf_counter()
        await world.decide(handles[0], Approve())
        await handles[0].result()
        took_s = time.perf_counter() - began

    assert waiting == 1
    assert took_s < 10
