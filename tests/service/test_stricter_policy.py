"""A decision is evaluated by the pinned and the current policy; the stricter wins."""

from __future__ import annotations

from datetime import timedelta

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Forbidden,
    Invalid,
    Reject,
)
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.service.harness import ANA, CHLOE, ServiceHarness, still_members

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
