"""The calls of one gesture are evaluated from one reading of the store."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click
from keyturn.gateway.service.submit.call_evaluation import WaitingCall, read_calls
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.races.interleaver import Interleaver
from tests.service.harness import ANA, ServiceHarness
from tests.service.windowed import refund, windowed


async def round_trips(harness: ServiceHarness, size: int, thread: str) -> int:
    """Return how often the store is asked when so many calls are approved at once."""
    calls = [refund(10 + n, f"c{n}") for n in range(size)]
    _, verdicts = await harness.submit(*calls, thread=thread)
    approval = await harness.approval(verdicts[0].item_id)
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.digest,
    )
    partition = dict.fromkeys(range(size), Approve())
    with pytest.MonkeyPatch.context() as patch:
        interleaver = Interleaver(harness.store.conn, patch)
        decision = harness.reviews.decide_card(approval, click, {**partition}, ANA)
        [outcome] = await interleaver.run([decision], lambda _: 0)
    assert getattr(outcome, "kind", "") == "gesturedecided"
    return interleaver.steps


async def test_many_calls_are_decided_in_as_few_round_trips_as_two(
    store: Store,
) -> None:
    harness = windowed(store)

    few = await round_trips(harness, 2, "t1")
    many = await round_trips(harness, 40, "t2")

    # The record, the windows, the rest, and the write.
    assert (few, many) == (4, 4)


async def test_each_call_of_a_gesture_is_evaluated_as_its_own_agents(
    store: Store,
) -> None:
    harness = ServiceHarness(store)
    calls: list[WaitingCall] = []
    for agent in ("support", "billing"):
        _, [verdict] = await harness.submit(
            ("process_refund", {"amount": 5}), thread=f"of-{agent}", agent=agent
        )
        approval = await harness.approval(verdict.item_id)
        calls.append(WaitingCall(approval, approval.items[0], approval.items[0].args))
    scope = FreezeScope(kind=ScopeKind.AGENT, name="billing")
    await harness.reviews.freezes.freeze(scope, "U0BEN", "stop")

    read = await read_calls(store, harness.policy, calls)

    frozen = [one.evaluated().freeze for one in read]
    assert [one.name if one else None for one in frozen] == [None, "agent billing"]
