"""A decision is evaluated by the pinned and the current policy; the stricter wins."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Expired,
    Forbidden,
    GestureRefused,
    Invalid,
    Reject,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, CHLOE, POLICY, ServiceHarness, still_members

MINUTE = int(timedelta(minutes=1).total_seconds() * 1000)


def put_rule(harness: ServiceHarness, rule: str) -> None:
    """Put another rule for refunds in force."""
    harness.put_policy(("{tier: approve}", rule))


async def has_waited(harness: ServiceHarness, item_id: str, minutes: int) -> None:
    """Make a card that old; its end stays the same."""
    approval = await harness.approval(item_id)
    keys = harness.store.keys_of_approval(approval.id)
    assert keys is not None
    opened_ms = approval.created_at_ms - minutes * MINUTE
    head = keys.head(approval.id)
    await harness.command("HSET", head, "created", str(opened_ms))
    ends_ms = approval.expires_at_ms - minutes * MINUTE
    await harness.command("HSET", head, "expires", str(ends_ms))


async def test_a_call_that_is_too_old_is_not_approved(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    await has_waited(harness, claim.item_id, 30)
    put_rule(harness, "{tier: approve, expires_in: 20m}")

    approved = await harness.reviews.decide(click, Approve(), ANA)
    edited = await harness.reviews.decide(click, Edit(args={"amount": 1}), ANA)
    rejected = await harness.reviews.decide(click, Reject(reason="late"), ANA)

    assert isinstance(approved, Forbidden)
    assert approved.reason.startswith(
        "Too late to approve: the policy now gives less time"
    )
    assert isinstance(edited, Forbidden)
    assert rejected.kind == "decided"
    item = (await harness.approval(claim.item_id)).items[0]
    assert item.state is ItemState.REJECTED


async def test_added_time_outlives_a_shorter_policy(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    await harness.reviews.change_own(
        claim.item_id.rpartition(".")[0], waiting_changes.extend, ANA
    )
    await has_waited(harness, claim.item_id, 45)
    put_rule(harness, "{tier: approve, expires_in: 30m}")

    outcome = await harness.reviews.decide(click, Approve(), ANA)

    assert outcome.kind == "decided"


async def test_a_raised_call_has_the_time_of_its_tier(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    await has_waited(harness, claim.item_id, 30)
    put_rule(harness, "{tier: escalate, expires_in: 20m}")

    first = await harness.reviews.decide(click, Approve(), ANA)
    second = await harness.reviews.decide(click, Approve(), CHLOE, voters=still_members)

    assert (first.kind, second.kind) == ("voted", "decided")


async def test_a_newly_required_reason_is_asked_for(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    put_rule(harness, "{tier: approve, requires_reason: [edit, reject]}")

    silent = await harness.reviews.decide(click, Reject(reason=" "), ANA)
    changed = await harness.reviews.decide(click, Edit(args={"amount": 1}), ANA)
    said = await harness.reviews.decide(click, Reject(reason="twice"), ANA)

    assert isinstance(silent, Invalid)
    assert isinstance(changed, Invalid)
    assert said.kind == "decided"


async def test_an_edit_has_to_fit_the_current_schema(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    schema = "{properties: {amount: {type: number, maximum: 50}}}"
    put_rule(harness, f"{{tier: approve, args_schema: {schema}}}")

    large = await harness.reviews.decide(click, Edit(args={"amount": 60}), ANA)
    smuggled: JsonObject = {"amount": 1, "to": "me"}
    unknown = await harness.reviews.decide(click, Edit(args=smuggled), ANA)
    small = await harness.reviews.decide(click, Edit(args={"amount": 40}), ANA)

    assert isinstance(large, Invalid)
    assert list(large.errors) == ["/amount"]
    assert isinstance(unknown, Invalid)
    assert small.kind == "decided"


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
def strict(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(STRICT, "policy.yml"))


async def raised(strict: ServiceHarness) -> tuple[Approval, Approval]:
    """Edit a small refund into a large one as Ana; return it before and after."""
    click, claim = await strict.refund(1)
    before = await strict.approval(claim.item_id)
    args = {**before.items[0].args, "amount": 900}
    await strict.reviews.decide(click, Edit(args=args), ANA)
    after = await strict.approval(claim.item_id)
    assert after.items[0].tier is Tier.ESCALATE
    return before, after


async def test_an_edit_that_raises_shortens_the_wait(strict: ServiceHarness) -> None:
    before, after = await raised(strict)

    assert before.expires_at_ms - before.created_at_ms == HOUR
    waits_ms = after.expires_at_ms - before.created_at_ms
    assert TEN <= waits_ms <= TEN + SLACK
    keys, conn = strict.keys, strict.store.conn
    due = await conn.command("ZSCORE", keys.expiry, keys.listed(after.id))
    waits = keys.waiting("support")
    full = await conn.command("ZSCORE", waits, keys.listed(after.id) + b"0")
    assert float(text(due)) == float(text(full)) == after.expires_at_ms


async def test_a_stricter_policy_shortens_a_wait_once(strict: ServiceHarness) -> None:
    click, claim = await strict.refund(1)
    stricter = STRICT.replace("args.amount > 500", "args.amount > 0")
    strict.put_policy(of=stricter)

    first = await strict.reviews.decide(click, Approve(), ANA)

    once = await strict.approval(claim.item_id)
    assert first.kind == "voted"
    assert once.expires_at_ms - once.created_at_ms <= TEN + SLACK
    second = await strict.reviews.decide(click, Approve(), BEN, voters=still_members)
    assert second.kind == "voted"
    assert (await strict.approval(claim.item_id)).expires_at_ms == once.expires_at_ms


async def beside(strict: ServiceHarness) -> Approval:
    """Edit one of three refunds into a large one as Ana."""
    refund: JsonObject = {"amount": 1}
    _, verdicts = await strict.submit(*[("process_refund", refund)] * 3)
    edit = Edit(args={"amount": 900})
    await strict.decide(verdicts[1], edit)
    return await strict.approval(verdicts[0].item_id)


async def test_one_call_of_a_card_expires_alone(strict: ServiceHarness) -> None:
    approval = await beside(strict)
    keys, conn = strict.keys, strict.store.conn
    # The clock: the raised call is over.
    await conn.transaction(
        ["HSET", keys.head(approval.id), "1:e", 1],
        ["ZADD", keys.expiry, 1, keys.listed(approval.id)],
    )

    assert await strict.sweeper.sweep()

    after = await strict.approval(approval.items[0].id)
    states = [item.state for item in after.items]
    assert states == [ItemState.PENDING, ItemState.EXPIRED, ItemState.PENDING]
    listed = keys.listed(approval.id)
    due = float(text(await conn.command("ZSCORE", keys.expiry, listed)))
    assert due == after.expires_at_ms == approval.created_at_ms + HOUR
    assert not await strict.sweeper.sweep()
    click = await strict.click_on(approval.items[2].id)
    assert (await strict.reviews.decide(click, Approve(), BEN)).kind == "decided"


async def test_an_expired_call_stops_a_click_on_all(strict: ServiceHarness) -> None:
    approval = await beside(strict)
    keys, conn = strict.keys, strict.store.conn
    await conn.command("HSET", keys.head(approval.id), "1:e", 1)
    partition = {item.index: Reject(reason="no") for item in approval.items}

    outcome = await strict.decide_card(approval, partition, BEN)

    assert outcome == GestureRefused(refusals={1: Expired(expires_at_ms=1)})
    after = await strict.approval(approval.items[0].id)
    states = [item.state for item in after.items]
    assert states == [ItemState.PENDING, ItemState.EXPIRED, ItemState.PENDING]
