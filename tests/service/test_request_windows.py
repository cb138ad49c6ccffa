"""A window of requests counts what was asked for, whatever became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.races.interleaver import Choose, Interleaver, every_order
from tests.service.desk import ANA, POLICY, Desk, claim_of
from twokey.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reject,
    Respond,
    Settled,
    Voted,
)
from twokey.gateway.policy.load import load_policy
from twokey.gateway.policy.resources import resource_key
from twokey.gateway.policy.windows import MICRO
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.wire import TurnRef, Verdict, VerdictKind
from twokey.gateway.store.store import Store

RULES = """process_refund:
    tier: approve
    raise:
      - {to: escalate, when: windows.asked_sum > 1000, because: much was asked for}
      - {to: deny, when: windows.asked > 2, because: the third request in an hour}
"""
WINDOWS = """
windows:
  asked:
    {tools: process_refund, by: args.customer, count: true, counts: requests,
     within: 1h}
  asked_sum:
    {tools: process_refund, by: args.customer, sum: args.amount, counts: requests,
     within: 1h}
"""


@pytest.fixture
def desk(store: Store) -> Desk:
    text = POLICY.replace("process_refund: {tier: approve}\n", RULES)
    return Desk(store, load_policy(text + WINDOWS, "policy.yml"))


async def ask(
    desk: Desk, thread: str, amount: int = 49, customer: str = "c7"
) -> tuple[TurnRef, Verdict]:
    args: JsonObject = {"amount": amount, "customer": customer}
    ref, (verdict,) = await desk.submit(("process_refund", args), thread=thread)
    return ref, verdict


async def asked(desk: Desk, window: str = "asked", customer: str = "c7") -> float:
    return await desk.total(window, resource_key(customer)) / MICRO


async def pass_by(desk: Desk, minutes: int) -> None:
    """Move the clock of the customer's windows."""
    keys, conn = desk.store.keys_of_tenant("default"), desk.store.conn
    for name in ("asked", "asked_sum"):
        window = keys.window("default", name, resource_key("c7"))
        for use in cast("list[bytes]", await conn.command("ZRANGE", window, 0, -1)):
            await conn.command("ZINCRBY", window, -minutes * 60_000, use)


async def nothing(_desk: Desk, _ref: TurnRef, _verdict: Verdict) -> None:
    """Let it wait."""


def decided(decision: Decision) -> Callable[[Desk, TurnRef, Verdict], Awaitable[None]]:
    async def decide(desk: Desk, _ref: TurnRef, verdict: Verdict) -> None:
        await desk.reviews.decide(await desk.click(verdict), decision, ANA)

    return decide


async def expired(desk: Desk, _ref: TurnRef, verdict: Verdict) -> None:
    await desk.overdue((await desk.approval(verdict.item_id)).id)
    await desk.sweeper.sweep()


async def lapsed(desk: Desk, ref: TurnRef, verdict: Verdict) -> None:
    await decided(Approve())(desk, ref, verdict)
    await desk.lapsed(verdict.item_id)
    await desk.sweeper.sweep()


async def superseded(desk: Desk, ref: TurnRef, _verdict: Verdict) -> None:
    await desk.submit(("look_up_order", {}), thread=ref.thread)


async def withdrawn(desk: Desk, _ref: TurnRef, verdict: Verdict) -> None:
    await desk.agents.withdraw(frozenset({verdict.item_id}))


async def claimed(desk: Desk, ref: TurnRef, verdict: Verdict) -> None:
    await decided(Approve())(desk, ref, verdict)
    await desk.agents.claim(claim_of(ref, verdict))


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
    desk: Desk, end: Callable[[Desk, TurnRef, Verdict], Awaitable[None]]
) -> None:
    ref, verdict = await ask(desk, "t1")

    await end(desk, ref, verdict)
    await pass_by(desk, minutes=55)

    assert await asked(desk) == 1
    assert await asked(desk, "asked_sum") == 49


async def test_the_third_request_is_refused_although_the_first_two_were_refused(
    desk: Desk,
) -> None:
    for thread in ("t1", "t2"):
        ref, verdict = await ask(desk, thread)
        await decided(Reject(reason="no"))(desk, ref, verdict)

    _, third = await ask(desk, "t3")

    assert third.kind is VerdictKind.DENY
    assert "the third request in an hour" in third.reason


async def test_a_request_that_the_policy_refuses_is_a_request(desk: Desk) -> None:
    for thread in ("t1", "t2", "t3", "t4"):
        await ask(desk, thread)
    await pass_by(desk, minutes=55)

    assert await asked(desk) == 4


async def test_a_request_of_an_agent_that_asks_too_much_is_a_request(
    desk: Desk,
) -> None:
    one = ("process_refund", cast("JsonObject", {"amount": 1, "customer": "c7"}))
    desk.policy = desk.policy.with_(
        protect=desk.policy.protect.with_(pending_per_agent=1)
    )

    _, (held, crowded) = await desk.submit(one, one)

    assert (held.kind, crowded.kind) == (VerdictKind.HOLD, VerdictKind.DENY)
    assert await asked(desk) == 2


async def test_a_turn_that_is_submitted_again_asks_once(desk: Desk) -> None:
    args: JsonObject = {"amount": 1, "customer": "c7"}

    turn = [("process_refund", args)]
    await asyncio.gather(*(desk.submit(*turn, message_id="m1") for _ in "12345"))

    assert await asked(desk) == 1


async def test_two_requests_of_one_turn_see_each_other(desk: Desk) -> None:
    one = ("process_refund", cast("JsonObject", {"amount": 1, "customer": "c7"}))

    _, verdicts = await desk.submit(one, one, one)

    kinds = [verdict.kind for verdict in verdicts]
    assert kinds == [VerdictKind.HOLD, VerdictKind.HOLD, VerdictKind.DENY]


async def test_a_request_leaves_when_its_hour_has_passed(desk: Desk) -> None:
    await ask(desk, "t1")
    await pass_by(desk, minutes=60)

    assert await asked(desk) == 0


async def test_later_requests_change_nothing_about_an_earlier_one(desk: Desk) -> None:
    _, first = await ask(desk, "t1")
    for thread in ("t2", "t3", "t4"):
        await ask(desk, thread)

    outcome = await desk.reviews.decide(await desk.click(first), Approve(), ANA)

    assert isinstance(outcome, Settled)


async def test_an_edit_is_judged_by_the_place_that_its_request_has(desk: Desk) -> None:
    await ask(desk, "t1", amount=500)
    _, second = await ask(desk, "t2", amount=100)
    await ask(desk, "t3", amount=9000)
    click = await desk.click(second)

    fits = await desk.reviews.preview(
        await desk.approval(second.item_id), 0, {"amount": 500, "customer": "c7"}
    )
    raised = await desk.reviews.decide(
        click, Edit(args={"amount": 501, "customer": "c7"}), ANA
    )

    assert fits
    assert fits.tier is Tier.APPROVE
    assert isinstance(raised, Voted)


async def test_an_edit_towards_somebody_else_meets_their_requests(desk: Desk) -> None:
    for thread in ("t1", "t2"):
        await ask(desk, thread, customer="c8")
    _, mine = await ask(desk, "t3")

    judged = await desk.reviews.preview(
        await desk.approval(mine.item_id), 0, {"amount": 1, "customer": "c8"}
    )

    assert judged
    assert judged.tier is Tier.DENY


async def test_no_order_of_three_requests_lets_the_third_through(store: Store) -> None:
    text = POLICY.replace("process_refund: {tier: approve}\n", RULES)
    policy = load_policy(text + WINDOWS, "policy.yml")
    number = iter(range(10_000))

    async def play(choose: Choose) -> None:
        desk, customer = Desk(store, policy), f"c{next(number)}"
        verdicts: list[Verdict] = []

        async def one() -> None:
            _, verdict = await ask(desk, f"t{next(number)}", customer=customer)
            verdicts.append(verdict)

        await one()
        with pytest.MonkeyPatch.context() as patch:
            await Interleaver(store.conn, patch).run([one(), one()], choose)
        kinds = sorted(verdict.kind.value for verdict in verdicts)
        assert kinds == ["deny", "hold", "hold"]
        assert await asked(desk, customer=customer) == 3

    orders = 0
    for choose in every_order():
        await play(choose)
        orders += 1

    assert orders >= 10
