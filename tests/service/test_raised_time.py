"""A call with a raised tier stays pending no longer than the stricter tier allows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Expired,
    GestureRefused,
    Reject,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, POLICY, ServiceHarness, still_members

HOUR = int(timedelta(hours=1).total_seconds() * 1000)
TEN = int(timedelta(minutes=10).total_seconds() * 1000)
SLACK = 5_000
"""Milliseconds that the test itself may take."""
STRICT = POLICY.replace(
    "{needs: with_senior}",
    "{needs: with_senior, expires_in: 10m}",
).replace(
    "process_refund: {tier: approve}",
    "process_refund:\n    tier: approve\n    raise:\n"
    "      - {to: escalate, when: 'args.amount > 500', because: large}",
)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(STRICT, "policy.yml"))


async def raised(harness: ServiceHarness) -> tuple[Approval, Approval]:
    """Edit a small refund into a large one as Ana; return it before and after."""
    click, claim = await harness.refund(1)
    before = await harness.approval(claim.item_id)
    args = {**before.items[0].args, "amount": 900}
    await harness.reviews.decide(click, Edit(args=args), ANA)
    after = await harness.approval(claim.item_id)
    assert after.items[0].tier is Tier.ESCALATE
    return before, after


async def test_an_edit_that_raises_shortens_the_wait(harness: ServiceHarness) -> None:
    before, after = await raised(harness)

    assert before.expires_at_ms - before.created_at_ms == HOUR
    waits_ms = after.expires_at_ms - before.created_at_ms
    assert TEN <= waits_ms <= TEN + SLACK
    keys, conn = harness.keys, harness.store.conn
    due = await conn.command("ZSCORE", keys.expiry, keys.listed(after.id))
    waits = keys.waiting("support")
    full = await conn.command("ZSCORE", waits, keys.listed(after.id) + b"0")
    assert float(text(due)) == float(text(full)) == after.expires_at_ms


async def test_a_stricter_policy_shortens_a_wait_once(harness: ServiceHarness) -> None:
    click, claim = await harness.refund(1)
    stricter = STRICT.replace("args.amount > 500", "args.amount > 0")
    harness.put_policy(of=stricter)

    first = await harness.reviews.decide(click, Approve(), ANA)

    once = await harness.approval(claim.item_id)
    assert first.kind == "voted"
    assert once.expires_at_ms - once.created_at_ms <= TEN + SLACK
    second = await harness.reviews.decide(click, Approve(), BEN, voters=still_members)
    assert second.kind == "voted"
    assert (await harness.approval(claim.item_id)).expires_at_ms == once.expires_at_ms


async def beside(harness: ServiceHarness) -> Approval:
    """Edit one of three refunds into a large one as Ana."""
    refund: JsonObject = {"amount": 1}
    _, verdicts = await harness.submit(*[("process_refund", refund)] * 3)
    edit = Edit(args={"amount": 900})
    await harness.decide(verdicts[1], edit)
    return await harness.approval(verdicts[0].item_id)


async def test_one_call_of_a_card_expires_alone(harness: ServiceHarness) -> None:
    approval = await beside(harness)
    keys, conn = harness.keys, harness.store.conn
    # The clock: the raised call is over.
    await conn.transaction(
        ["HSET", keys.head(approval.id), "1:e", 1],
        ["ZADD", keys.expiry, 1, keys.listed(approval.id)],
    )

    assert await harness.sweeper.sweep()

    after = await harness.approval(approval.items[0].id)
    states = [item.state for item in after.items]
    assert states == [ItemState.PENDING, ItemState.EXPIRED, ItemState.PENDING]
    listed = keys.listed(approval.id)
    due = float(text(await conn.command("ZSCORE", keys.expiry, listed)))
    assert due == after.expires_at_ms == approval.created_at_ms + HOUR
    assert not await harness.sweeper.sweep()
    click = await harness.click_on(approval.items[2].id)
    assert (await harness.reviews.decide(click, Approve(), BEN)).kind == "decided"


async def test_a_click_on_all_calls_that_finds_one_expired_decides_none_and_ends_it(
    harness: ServiceHarness,
) -> None:
    approval = await beside(harness)
    keys, conn = harness.keys, harness.store.conn
    await conn.command("HSET", keys.head(approval.id), "1:e", 1)
    partition = {item.index: Reject(reason="no") for item in approval.items}

    outcome = await harness.decide_card(approval, partition, BEN)

    assert outcome == GestureRefused(refusals={1: Expired(expires_at_ms=1)})
    after = await harness.approval(approval.items[0].id)
    states = [item.state for item in after.items]
    assert states == [ItemState.PENDING, ItemState.EXPIRED, ItemState.PENDING]
