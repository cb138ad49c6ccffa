"""Calls that are submitted one by one in a thread wait side by side in own lanes."""

from __future__ import annotations

import pytest

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness

PENDING, SUPERSEDED = ItemState.PENDING, ItemState.SUPERSEDED


@pytest.mark.parametrize(
    ("lanes", "states"),
    [
        (["", "", ""], [SUPERSEDED, SUPERSEDED, PENDING]),
        (["a", "b", "c"], [PENDING] * 3),
        (["a", "b", "a"], [SUPERSEDED, PENDING, PENDING]),
        (["", "a", ""], [SUPERSEDED, SUPERSEDED, PENDING]),
    ],
)
async def test_only_a_turn_of_the_same_lane_supersedes(
    store: Store, lanes: list[str], states: list[ItemState]
) -> None:
    harness, items = ServiceHarness(store), list[str]()
    for number, lane in enumerate(lanes):
        ref = TurnRef(agent="support", thread="t1", ns=lane, message_id=f"m{number}")
        call = ProposedCall(
            tool="process_refund", args={"amount": number}, tool_call_id="c"
        )
        (verdict,) = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
        items.append(verdict.item_id)

    assert [(await harness.item(one)).state for one in items] == states
