"""A window of requests counts requests, also those that did not run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reject,
    Respond,
    Voted,
)
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.windows import MICRO, window_key
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import TurnRef, Verdict, VerdictKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of

RULES = """process_refund:
    tier: approve
    raise:
      - {to: escalate, when: windows.asked_sum > 1000, because: much was asked for}
      - {to: deny, when: windows.asked > 2, because: the third request in an hour}
"""
WINDOWS = """
windows:
  asked:
    {tools: process_refund, by: args.customer, sum: 1, counts: requests,
     within: 1h}
  asked_sum:
    {tools: process_refund, by: args.customer, sum: args.amount, counts: requests,
     within: 1h}
"""


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    text = POLICY.replace("process_refund: {tier: approve}\n", RULES)
    return ServiceHarness(store, load_policy(text + WINDOWS, "policy.yml"))


async def ask(
    harness: ServiceHarness, thread: str, amount: int = 49, customer: str = "c7"
) -> tuple[TurnRef, Verdict]:
    args: JsonObject = {"amount": amount, "customer": customer}
    ref, (verdict,) = await harness.submit(("process_refund", args), thread=thread)
    return ref, verdict


async def asked(
    harness: ServiceHarness, window: str = "asked", customer: str = "c7"
) -> float:
    return await harness.total(window, window_key(customer)) / MICRO


async def pass_by(harness: ServiceHarness, minutes: int) -> None:
    """Move the clock of the customer's windows."""
    keys, conn = harness.keys, harness.store.conn
    for name in ("asked", "asked_sum"):
        window = keys.window(name, window_key("c7"))
        for use in cast("list[bytes]", await conn.command("ZRANGE", window, 0, -1)):
            await conn.command("ZINCRBY", window, -minutes * 60_000, use)


async def nothing(_desk: ServiceHarness, _ref: TurnRef, _verdict: Verdict) -> None:
    """Leave it pending."""


def decided(
    decision: Decision,
) -> Callable[[ServiceHarness, TurnRef, Verdict], Awaitable[None]]:
    async def decide(harness: ServiceHarness, _ref: TurnRef, verdict: Verdict) -> None:
        await harness.decide(verdict, decision)

    return decide


async def expired(harness: ServiceHarness, _ref: TurnRef, verdict: Verdict) -> None:
    await harness.overdue((await harness.approval(verdict.item_id)).id)
    await harness.sweeper.sweep()


async def lapsed(harness: ServiceHarness, ref: TurnRef, verdict: Verdict) -> None:
    await decided(Approve())(harness, ref, verdict)
    await harness.lapsed(verdict.item_id)
    await harness.sweeper.sweep()


async def superseded(harness: ServiceHarness, ref: TurnRef, _verdict: Verdict) -> None:
    await harness.submit(("look_up_order", {}), thread=ref.thread)


async def withdrawn(harness: ServiceHarness, _ref: TurnRef, verdict: Verdict) -> None:
    await harness.agents.withdraw_items(frozenset({verdict.item_id}))


async def claimed(harness: ServiceHarness, ref: TurnRef, verdict: Verdict) -> None:
    await decided(Approve())(harness, ref, verdict)
    await harness.agents.claim(claim_of(ref, verdict))


ENDS = {
    "waits": nothing,
    "is rejected": decided(Reject(reason="no")),
    "is answered": decided(Respond(message="why?")),
    "is approved": decided(Approve()),
    "is edited": decided(Edit(args={"amount": 10, "customer": "c8"})),
    "expires": expired,
    "lapses": lapsed,
    "is superseded": superseded,
    "is withdrawn": withdrawn,
    "runs": claimed,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_request_stays_counted_when_it(
    harness: ServiceHarness,
    end: Callable[[ServiceHarness, TurnRef, Verdict], Awaitable[None]],
) -> None:
    ref, verdict = await ask(harness, "t1")

    await end(harness, ref, verdict)
    await pass_by(harness, minutes=55)

    assert await asked(harness) == 1
    assert await asked(harness, "asked_sum") == 49


async def test_refused_requests_count_in_the_window(harness: ServiceHarness) -> None:
    for thread in ("t1", "t2"):
        ref, verdict = await ask(harness, thread)
        await decided(Reject(reason="no"))(harness, ref, verdict)

    _, third = await ask(harness, "t3")

    assert third.kind is VerdictKind.DENY
    assert "the third request in an hour" in third.reason


async def test_a_request_the_policy_refuses_counts(harness: ServiceHarness) -> None:
    for thread in ("t1", "t2", "t3", "t4"):
        await ask(harness, thread)
    await pass_by(harness, minutes=55)

    assert await asked(harness) == 4


async def test_a_request_of_a_busy_agent_counts(harness: ServiceHarness) -> None:
    one = ("process_refund", cast("JsonObject", {"amount": 1, "customer": "c7"}))
    harness.policy = harness.policy.with_(
        protect=harness.policy.protect.with_(pending_per_agent=1)
    )

    _, (held, crowded) = await harness.submit(one, one)

    assert (held.kind, crowded.kind) == (VerdictKind.HOLD, VerdictKind.DENY)
    assert await asked(harness) == 2


async def test_a_repeated_turn_counts_once(harness: ServiceHarness) -> None:
    args: JsonObject = {"amount": 1, "customer": "c7"}

    turn = [("process_refund", args)]
    await asyncio.gather(*(harness.submit(*turn, message_id="m1") for _ in "12345"))

    assert await asked(harness) == 1


async def test_two_requests_of_one_turn_see_each_other(harness: ServiceHarness) -> None:
    one = ("process_refund", cast("JsonObject", {"amount": 1, "customer": "c7"}))

    _, verdicts = await harness.submit(one, one, one)

    kinds = [verdict.kind for verdict in verdicts]
    assert kinds == [VerdictKind.HOLD, VerdictKind.HOLD, VerdictKind.DENY]


async def test_an_edit_keeps_the_place_of_its_request(harness: ServiceHarness) -> None:
    await ask(harness, "t1", amount=500)
    _, second = await ask(harness, "t2", amount=100)
    await ask(harness, "t3", amount=9000)
    click = await harness.click(second)

    fits = await harness.reviews.preview(
        await harness.approval(second.item_id), 0, {"amount": 500, "customer": "c7"}
    )
    raised = await harness.reviews.decide(
        click, Edit(args={"amount": 501, "customer": "c7"}), ANA
    )

    assert fits
    assert fits.tier is Tier.APPROVE
    assert isinstance(raised, Voted)


async def test_an_edit_counts_for_the_other_person(harness: ServiceHarness) -> None:
    for thread in ("t1", "t2"):
        await ask(harness, thread, customer="c8")
    _, mine = await ask(harness, "t3")

    evaluated = await harness.reviews.preview(
        await harness.approval(mine.item_id), 0, {"amount": 1, "customer": "c8"}
    )

    assert evaluated
    assert evaluated.tier is Tier.DENY
