"""Many people, many processes, one moment: exactly one decision wins."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Outcome,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.service.harness import ANA, BEN, ServiceHarness
from tests.streams import audit_entries

APPROVALS = size(deep=2000, short=60)
"""Each is a race of its own, and ten run at once."""

DECIDERS = 8
AT_ONCE = 10
_DECIDING = {
    EventName.ITEM_AUTHORIZED,
    EventName.ITEM_REJECTED,
    EventName.ITEM_ANSWERED,
}


def different(n: int) -> Decision:
    """Return a decision that no other of the eight makes."""
    choices: list[Decision] = [
        Approve(),
        Reject(reason=f"no {n}"),
        Respond(message=f"ask {n}"),
        Edit(args={"amount": n + 1}, reason=f"edit {n}"),
    ]
    return choices[n % len(choices)]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_one_of_eight_decisions_wins_once(
    store: Store,
) -> None:
    harness = ServiceHarness(store)
    clicks = [(await harness.refund(thread=f"t{n}"))[0] for n in range(APPROVALS)]
    gate = asyncio.Semaphore(AT_ONCE)

    async def race(place: int) -> list[Outcome]:
        async with gate:
            return await asyncio.gather(
                *(
                    harness.reviews.decide(
                        clicks[place], different(n), ANA if n % 2 else BEN
                    )
                    for n in range(DECIDERS)
                )
            )

    rounds = await asyncio.gather(*(race(place) for place in range(APPROVALS)))

    keys = store.keys_of_tenant("default")
    audit = await audit_entries(store.conn, keys)
    decided = Counter(event.item for event in audit if event.name in _DECIDING)
    winners = [sum(o.kind == "decided" for o in outcomes) for outcomes in rounds]
    losers = Counter(o.kind for outcomes in rounds for o in outcomes)
    assert winners == [1] * APPROVALS
    assert set(losers) <= {"decided", "stale", "changed"}
    assert len(decided) == APPROVALS
    assert set(decided.values()) == {1}
    assert await harness.jobs() == APPROVALS
