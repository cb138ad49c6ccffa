"""The calls of one gesture are evaluated from one reading of the store."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click, Edit
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.service.submit.call_evaluation import WaitingCall, read_calls
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.limits.windows import held_in
from keyturn.gateway.store.store import Store
from tests.races.interleaver import Interleaver
from tests.service.harness import ANA, POLICY, ServiceHarness
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


@pytest.mark.parametrize("amount", [7.0, 1e2, -0.0, 0.50])
async def test_an_edit_is_described_as_a_call_with_the_same_number(
    store: Store, amount: float
) -> None:
    described = 'process_refund: {tier: approve, description: "Refund {args.amount}"}'
    text = POLICY.replace("process_refund: {tier: approve}", described)
    harness = ServiceHarness(store, load_policy(text, "policy.yml"))
    _, asked = await harness.refund(amount, thread="asked")
    click, edited = await harness.refund(3, thread="edited")

    await harness.reviews.decide(click, Edit(args={"amount": amount}), ANA)

    wanted = await harness.item(asked.item_id)
    assert (await harness.item(edited.item_id)).description == wanted.description


async def test_totals_of_one_reading_start_from_one_sum(store: Store) -> None:
    harness = windowed(store)
    _, verdicts = await harness.submit(refund(10), refund(20), thread="t1")
    approval = await harness.approval(verdicts[0].item_id)
    calls = [WaitingCall(approval, item, item.args) for item in approval.items]
    uses = [one.usage.uses for one in await read_calls(store, harness.policy, calls)]
    [window] = {use.window for of_call in uses for use in of_call}
    # More than one look at a window forgets.
    past, now_ms = 15_000, await store.conn.now_ms("")
    rows = [
        word for n in range(past) for word in (now_ms - past + n, f"call{n} 1000000")
    ]
    await store.conn.transaction(
        ["ZADD", window, *rows], ["INCRBY", f"{window}:sum", past * 1_000_000]
    )

    read = await read_calls(store, harness.policy, calls)

    totals = [one.totals["refunds"] for one in read]
    assert totals == [(5_000 + 30) * 1_000_000] * 2
    assert read[0].held == {window: (5_000 + 30) * 1_000_000}
    keys = store.keys_of_tenant("default")
    reserved = await store.windows.totals_of_each([held_in(keys, [window])])
    assert reserved == [[30 * 1_000_000]]
