"""A window counts what may still run or ran, and nothing else, in every order."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.service.desk import ANA, BEN, CHLOE, POLICY, Desk, claim_of, still_members
from tests.service.windowed import refund, refunded, windowed
from twokey.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reconcile,
    Reject,
    Respond,
    Settled,
    Voted,
)
from twokey.gateway.policy.load import load_policy
from twokey.gateway.policy.resources import resource_key
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.protocol.wire import Claimed, VerdictKind
from twokey.gateway.store.store import Store


@pytest.fixture
def desk(store: Store) -> Desk:
    return windowed(store)


async def test_three_small_refunds_are_caught_by_their_sum(desk: Desk) -> None:
    tiers = [
        (await desk.submit(refund(400), thread=f"t{n}"))[1][0].tier for n in range(3)
    ]

    assert tiers == [Tier.APPROVE, Tier.APPROVE, Tier.ESCALATE]


async def test_two_calls_of_one_turn_see_each_other(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(900), refund(900))

    assert [verdict.tier for verdict in verdicts] == [Tier.APPROVE, Tier.ESCALATE]


async def test_customers_are_counted_apart_and_their_spellings_together(
    desk: Desk,
) -> None:
    await desk.submit(refund(900, "c7"))

    _, other = await desk.submit(refund(900, "c8"), thread="t2")
    _, same = await desk.submit(refund(900, " C7 "), thread="t3")

    assert other[0].tier is Tier.APPROVE
    assert same[0].tier is Tier.ESCALATE


async def test_a_turn_submitted_twice_counts_once(desk: Desk) -> None:
    await asyncio.gather(*(desk.submit(refund(300), message_id="m1") for _ in "12345"))

    assert await refunded(desk) == 300


@pytest.mark.parametrize("decision", [Reject(reason="no"), Respond(message="ask")])
async def test_what_people_refuse_counts_no_longer(
    desk: Desk, decision: Decision
) -> None:
    _, verdicts = await desk.submit(refund(900), refund(50))

    await desk.reviews.decide(await desk.click(verdicts[0]), decision, ANA)

    assert await refunded(desk) == 50


async def a_day_passes(desk: Desk) -> None:
    """Move the clock of one window: let 25 hours pass."""
    key = desk.store.keys_of_tenant("default").window(
        "default", "refunds", resource_key("c7")
    )
    uses = await desk.store.conn.command("ZRANGE", key, 0, -1)
    for use in cast("list[bytes]", uses):
        await desk.store.conn.command("ZINCRBY", key, -25 * 3_600_000, use)


async def test_what_ran_slides_out_and_what_may_still_run_does_not(
    desk: Desk,
) -> None:
    ref, verdicts = await desk.submit(
        refund(100, tool="small_refund"), refund(200), refund(300)
    )
    await desk.reviews.decide(await desk.click(verdicts[1]), Approve(), ANA)
    await a_day_passes(desk)
    after_one_day = await refunded(desk)
    granted = await desk.agents.claim(claim_of(ref, verdicts[1]))
    assert isinstance(granted, Claimed)
    await desk.agents.finish(verdicts[1].item_id, granted.fence, Result(ok=True))
    when_it_ran = await refunded(desk)

    await a_day_passes(desk)

    assert (after_one_day, when_it_ran, await refunded(desk)) == (500, 500, 300)


async def test_what_expires_is_given_back_with_the_sweep(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(900))
    await desk.overdue((await desk.approval(verdicts[0].item_id)).id)

    await desk.sweeper.sweep()

    assert await refunded(desk) == 0


async def test_an_authorization_that_lapses_is_given_back(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(900))
    await desk.reviews.decide(await desk.click(verdicts[0]), Approve(), ANA)
    before = await refunded(desk)
    await desk.lapsed(verdicts[0].item_id)

    await desk.sweeper.sweep()

    assert (before, await refunded(desk)) == (900, 0)


async def test_a_thread_that_moves_on_gives_back_what_waited(desk: Desk) -> None:
    await desk.submit(refund(900))

    await desk.submit(("look_up_order", {}))

    assert await refunded(desk) == 0


async def test_what_the_agent_withdraws_is_given_back(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(900))

    await desk.agents.withdraw(frozenset({verdicts[0].item_id}))

    assert await refunded(desk) == 0


async def test_what_the_policy_denies_counts_nothing(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(9000))

    assert verdicts[0].kind is VerdictKind.DENY
    assert await refunded(desk) == 0


async def test_what_runs_unasked_counts(desk: Desk) -> None:
    _, small = await desk.submit(refund(300, tool="small_refund"))

    _, large = await desk.submit(refund(900), thread="t2")

    assert small[0].kind is VerdictKind.RUN
    assert large[0].tier is Tier.ESCALATE


@pytest.mark.parametrize("ok", [True, False])
async def test_what_ran_stays_counted_whether_it_failed_or_not(
    desk: Desk, *, ok: bool
) -> None:
    ref, verdicts = await desk.submit(refund(900))
    await desk.reviews.decide(await desk.click(verdicts[0]), Approve(), ANA)
    granted = await desk.agents.claim(claim_of(ref, verdicts[0]))
    assert isinstance(granted, Claimed)

    await desk.agents.finish(verdicts[0].item_id, granted.fence, Result(ok=ok))

    assert await refunded(desk) == 900


async def test_a_doubt_stays_counted_until_it_is_settled(desk: Desk) -> None:
    ref, verdicts = await desk.submit(refund(900))
    click = await desk.click(verdicts[0])
    await desk.reviews.decide(click, Approve(), ANA)
    await desk.agents.claim(claim_of(ref, verdicts[0]))
    await desk.owner_dies(verdicts[0].item_id)
    await desk.sweeper.sweep()
    in_doubt = await refunded(desk)

    await desk.reviews.decide(click, Reconcile(finding=Finding.RERUN), ANA)

    assert (in_doubt, await refunded(desk)) == (900, 900)


async def test_an_edit_moves_what_is_reserved_to_what_would_run(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(900))
    edit = Edit(args={"amount": 300, "customer": "c8"})

    await desk.reviews.decide(await desk.click(verdicts[0]), edit, ANA)

    assert (await refunded(desk), await refunded(desk, "c8")) == (0, 300)


async def test_an_edit_is_judged_by_the_sum_it_would_make(desk: Desk) -> None:
    await desk.submit(refund(600), thread="t1")
    _, verdicts = await desk.submit(refund(100), thread="t2")
    click = await desk.click(verdicts[0])

    outcome = await desk.reviews.decide(
        click, Edit(args={"amount": 500, "customer": "c7"}), ANA
    )

    item = await desk.item(verdicts[0].item_id)
    assert isinstance(outcome, Voted)
    assert item.tier is Tier.ESCALATE
    assert await refunded(desk) == 1100


async def test_an_edit_that_is_refused_reserves_nothing(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(600))

    outcome = await desk.reviews.decide(
        await desk.click(verdicts[0]),
        Edit(args={"amount": 6000, "customer": "c7"}),
        ANA,
    )

    assert outcome.kind == "invalid"
    assert await refunded(desk) == 600


async def test_an_item_is_not_counted_twice_when_it_is_decided(desk: Desk) -> None:
    _, verdicts = await desk.submit(refund(900))

    outcome = await desk.reviews.decide(await desk.click(verdicts[0]), Approve(), ANA)

    assert isinstance(outcome, Settled)


async def test_what_was_reserved_since_raises_what_already_waits(desk: Desk) -> None:
    _, first = await desk.submit(refund(900), thread="t1")
    await desk.submit(refund(900), thread="t2")
    click = await desk.click(first[0])

    one = await desk.reviews.decide(click, Approve(), ANA)
    two = await desk.reviews.decide(click, Approve(), CHLOE, voters=still_members)

    assert (one.kind, two.kind) == ("voted", "settled")


async def test_a_window_that_is_new_counts_what_waits_from_its_decision_on(
    desk: Desk,
) -> None:
    with_windows = desk.policy
    desk.policy = load_policy(POLICY, "p")
    _, verdicts = await desk.submit(refund(900))
    before = await refunded(desk)
    desk.policy = with_windows

    await desk.reviews.decide(await desk.click(verdicts[0]), Approve(), BEN)

    assert (before, await refunded(desk)) == (0, 900)


async def test_an_amount_that_is_not_known_is_for_two_people(desk: Desk) -> None:
    _, verdicts = await desk.submit(
        ("process_refund", {"amount": "lots", "customer": "c7"}),
        ("process_refund", {"amount": -900, "customer": "c7"}),
        ("process_refund", {"amount": 1}),
    )

    assert [verdict.tier for verdict in verdicts] == [Tier.ESCALATE] * 3
    assert await refunded(desk) == 0


async def test_tenants_do_not_see_each_others_sums(desk: Desk) -> None:
    await desk.submit(refund(900))

    assert await desk.total("refunds", '"c7"', tenant="other") == 0
    assert await desk.total("refunds", '"c7"') == 900_000_000
