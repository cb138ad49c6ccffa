"""Before people allow similar calls, they see how such calls were decided so far."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reject,
)
from keyturn.gateway.approvals.past_calls import PastCalls
from keyturn.gateway.policy.standing import Offer
from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness
from tests.service.standing import allowed, allowing, chosen, refund

MICRO = 10**6


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return allowing(store)


async def decided(
    harness: ServiceHarness,
    decision: Decision | None,
    *amounts: int,
    **more: str,
) -> None:
    """Ask for refunds of these amounts, and decide each."""
    for amount in amounts:
        thread = f"{decision and decision.kind} {amount} {more}"
        call = refund(amount, thread, **more)
        _, [verdict] = await harness.submit(call, thread=thread)
        if decision is not None:
            await harness.decide(verdict, decision)


async def past(harness: ServiceHarness, amount: int = 20) -> PastCalls:
    """Ask for another refund, and look back from it."""
    _, [verdict] = await harness.submit(refund(amount, "now"), thread="now")
    approval = await harness.approval(verdict.item_id)
    standing = harness.reviews.standing
    offer = standing.offer(approval, 0)
    assert isinstance(offer, Offer)
    return await standing.past(approval, 0, offer, entries=1_000)


async def test_the_largest_approved_amount_is_proposed(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 10, 90)

    found = await past(harness)

    assert found == PastCalls(decided=2, within=2, each_micro=90 * MICRO)
    assert found.is_usual


async def test_corrections_in_the_bounds_are_counted(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 30, 40)
    await decided(harness, Reject(), 35, 95)
    [edited] = (await harness.submit(refund(25, "edited"), thread="edited"))[1]
    await harness.decide(edited, Edit(args=refund(5, "edited")[1]))

    found = await past(harness)

    assert found == PastCalls(decided=5, within=4, corrected=2, each_micro=40 * MICRO)
    assert not found.is_usual


async def test_undecided_or_other_calls_do_not_count(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 30)
    await decided(harness, None, 31)
    await decided(harness, Approve(), 32, customer="c2")

    found = await past(harness)

    assert (found.decided, found.within) == (2, 1)
    assert not found.is_usual


async def test_calls_within_the_bounds_are_covered(harness: ServiceHarness) -> None:
    amounts = [5, 20, 60, 99, 100, 101, 150, 199]
    await decided(harness, Approve(), *amounts)
    found = await past(harness)

    await allowed(harness, what=chosen(each=found.each_micro // MICRO))
    again = [
        (await harness.submit(refund(amount, f"again {amount}"), thread=f"a{amount}"))[
            1
        ]
        for amount in amounts
    ]

    # A senior is needed above 100, so those calls are neither decided nor covered.
    covered = sum(verdict.kind is VerdictKind.RUN for [verdict] in again)
    assert (found.decided, found.within, covered) == (5, 5, 5)


async def test_no_audit_folder_means_no_past_calls(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 30, 40)
    key = harness.keys.audit_tree
    # As after a gateway moved entries into its files.
    moved = "9999999999999-0"
    await harness.store.conn.command("HSET", key, "moved", "1", "last", moved)

    found = await past(harness)

    assert found == PastCalls(each_micro=20 * MICRO)
