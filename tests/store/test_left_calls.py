"""The same call again joins one earlier call whose caller has left."""

from __future__ import annotations

import asyncio

from keyturn.gateway.store.http.left_calls import LeftCalls
from keyturn.gateway.store.store import Store


async def test_callers_at_once_join_one_call_each(store: Store) -> None:
    left, calls = LeftCalls(store, tenant="default"), [f"left {n}" for n in range(8)]
    for place in map(str, range(20)):
        for call in calls:
            await left.hold(place, call, 0)

        found = await asyncio.gather(
            *(left.earlier(place, place, f"again {n}") for n in range(8))
        )

        assert sorted(one.call for one in found) == calls
