"""However calls, edits and decisions interleave, no window is passed unseen."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Outcome
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.service.harness import ANA, BEN, ServiceHarness
from tests.service.windowed import refund, refunded, windowed, windowed_policy
from tests.store_secrets import SECRETS

ROUNDS = size(deep=50, short=6)
AT_ONCE = 10


async def submitted(
    store: Store, agent: str, thread: str, *calls: ProposedCall
) -> tuple[Verdict, ...]:
    policy = windowed_policy()
    ref = TurnRef(agent=agent, thread=thread, message_id="m")
    turn = Turn(ref=ref, calls=calls)
    return await AgentService(store, lambda: policy).submit(turn)


def call(amount: float, customer: str, place: int = 0) -> ProposedCall:
    tool, args = refund(amount, customer)
    return ProposedCall(tool=tool, args=args, tool_call_id=f"c{place}")


@pytest.mark.parametrize("spread", ["threads", "agents", "turn", "retries"])
async def test_of_ten_900s_under_a_limit_of_1000_one_stays_below_escalate(
    store: Store, valkey_url: str, spread: str
) -> None:
    stores = [Store(valkey_url, secrets=SECRETS) for _ in range(AT_ONCE)]

    async def race(customer: str) -> list[Verdict]:
        if spread == "turn":
            calls = [call(900, customer, place) for place in range(AT_ONCE)]
            return list(await submitted(store, "a", customer, *calls))
        agents = [f"a{n}" if spread == "agents" else "a" for n in range(AT_ONCE)]
        copies = 3 if spread == "retries" else 1
        answers = await asyncio.gather(
            *(
                submitted(stores[n], agents[n], f"{customer} {n}", call(900, customer))
                for n in range(AT_ONCE)
                for _ in range(copies)
            )
        )
        return [verdicts[0] for verdicts in answers[::copies]]

    harness = windowed(store)
    for customer in (f"c{n}" for n in range(ROUNDS)):
        verdicts = await race(customer)
        below = [one for one in verdicts if one.tier.rank < Tier.ESCALATE.rank]
        held = [one for one in verdicts if one.kind is VerdictKind.HOLD]

        assert len(below) <= 1
        # A call over 5,000 at its evaluation is denied and returns its share.
        assert await refunded(harness, customer) == 900 * len(held)
    for opened in stores:
        await opened.close()


async def test_of_edits_at_once_one_at_most_stays_below_escalate(store: Store) -> None:
    harness = windowed(store)
    for n in range(ROUNDS):
        customer = f"c{n}"
        waiting = [
            (await harness.submit(refund(10, customer), thread=f"{customer} {place}"))[
                1
            ]
            for place in range(4)
        ]
        clicks = [await harness.click(verdicts[0]) for verdicts in waiting]

        outcomes = await asyncio.gather(
            *(
                harness.reviews.decide(
                    click, Edit(args={"amount": 900, "customer": customer}), ANA
                )
                for click in clicks
            )
        )

        assert [one.kind for one in outcomes].count("decided") <= 1
        assert await refunded(harness, customer) == 3600


async def test_an_edit_and_a_new_call_do_not_miss_each_other(store: Store) -> None:
    harness = windowed(store)
    for n in range(ROUNDS):
        customer = f"c{n}"
        _, first = await harness.submit(refund(10, customer), thread=f"{customer} 1")
        click = await harness.click(first[0])
        edit = Edit(args={"amount": 900, "customer": customer})

        edited, (_, second) = await asyncio.gather(
            harness.reviews.decide(click, edit, ANA),
            harness.submit(refund(900, customer), thread=f"{customer} 2"),
        )

        assert edited.kind == "voted" or second[0].tier is Tier.ESCALATE


async def test_ends_and_beginnings_at_once_leave_the_sum_of_what_is_left(
    store: Store,
) -> None:
    harness = windowed(store)
    numbers = itertools.count()

    async def submit_and_end(place: int) -> float:
        thread = f"t{next(numbers)}"
        ref, verdicts = await harness.submit(refund(10 + place), thread=thread)
        if place % 3 == 0:
            await harness.agents.supersede(ref)
            return 0
        if place % 3 == 1:
            await harness.agents.withdraw(frozenset({verdicts[0].item_id}))
            return 0
        await _approve_twice(harness, verdicts[0])
        return 10 + place

    left = await asyncio.gather(*(submit_and_end(place) for place in range(60)))

    assert await refunded(harness) == sum(left)


async def _approve_twice(harness: ServiceHarness, verdict: Verdict) -> list[Outcome]:
    click = await harness.click(verdict)
    return [await harness.reviews.decide(click, Approve(), by) for by in (ANA, BEN)]
