"""A call of tier notify is an approval that the policy decided as it opened."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Forbidden,
    Reconcile,
    Stale,
)
from keyturn.gateway.approvals.events import BY_POLICY, EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Finding, ItemState, Result, RunRef, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    ClaimRequest,
    Refused,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.service.run.agents import RunCalls
from keyturn.gateway.store.store import Store
from tests.service.harness import (
    DAN,
    POLICY,
    ServiceHarness,
    claim_of,
    person,
)

NOTIFYING = (
    POLICY
    + """
  post: {tier: notify, redact: [args.key], description: "Post {args.text}"}
  tell: {tier: notify, channel: C0OTHER}
  ping: {tier: notify, idempotent: true}
"""
)
KIM = person("U0KIM")
CALL: tuple[str, JsonObject] = ("post", {"text": "a"})


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(NOTIFYING, "policy.yml"))


async def submitted(
    harness: ServiceHarness, call: tuple[str, JsonObject] = CALL
) -> tuple[Verdict, ClaimRequest]:
    ref, (verdict,) = await harness.submit(call)
    return verdict, claim_of(ref, verdict)


async def in_doubt(harness: ServiceHarness) -> tuple[Verdict, ClaimRequest]:
    """Return a call whose owner died while it ran."""
    verdict, request = await submitted(harness)
    await harness.granted(request)
    await harness.doubt(verdict.item_id)
    return verdict, request


async def test_a_turn_has_one_approval_in_each_channel(harness: ServiceHarness) -> None:
    _, (look, post, other, again, hold) = await harness.submit(
        ("look_up_order", {}),
        ("post", {"text": "a", "key": "k"}),
        ("tell", {}),
        ("post", {"text": "b"}),
        ("send_email", {}),
    )

    first = await harness.approval(post.item_id)
    second = await harness.approval(other.item_id)

    assert (look.item_id, hold.kind) == ("", VerdictKind.HOLD)
    assert again.item_id == f"{first.id}.1"
    assert first.id not in hold.item_id
    assert [item.args for item in first.items] == [
        {"text": "a", "key": "k"},
        {"text": "b"},
    ]
    assert (first.channel, second.channel) == ("C0APPROVALS", "C0OTHER")
    assert (first.requester, first.items[0].redact) == (DAN, ("args.key",))
    assert first.items[0].description == "Post a"


async def test_a_notification_opens_authorized(harness: ServiceHarness) -> None:
    verdict, _ = await submitted(harness)

    approval = await harness.approval(verdict.item_id)

    item = approval.items[0]
    assert (verdict.kind, verdict.tier) == (VerdictKind.RUN, Tier.NOTIFY)
    assert (item.state, approval.state) == (
        ItemState.AUTHORIZED,
        ApprovalState.CLOSED,
    )
    assert item.votes == ()
    assert item.decision is None
    (event,) = await harness.audited(EventName.ITEM_AUTHORIZED)
    assert (event.actor, event.item) == (BY_POLICY, item.id)
    assert event.policy_digest == harness.policy.digest
    assert event.reason == "The policy lists this tool as notify."
    assert (event.action_hash, item.changed_at_ms) == (item.action_hash, event.at_ms)


@pytest.mark.parametrize("tool", ["tell", "ping"])
async def test_a_failure_asks_nobody(harness: ServiceHarness, tool: str) -> None:
    asking = NOTIFYING.replace("{tier: notify, ", "{tier: notify, on_failure: ask, ")
    harness.put_policy(of=asking)
    verdict, request = await submitted(harness, (tool, {}))

    claim = await harness.ran(request, Result(ok=False))

    assert not claim.asks_on_failure
    assert (await harness.item(verdict.item_id)).state is ItemState.FAILED


async def test_a_notification_waits_in_no_queue(harness: ServiceHarness) -> None:
    verdict, _ = await submitted(harness)
    keys = harness.keys

    asked = await harness.store.conn.transaction(
        ["HLEN", keys.requests_10m("support")],
        ["ZCARD", keys.waiting("support")],
        ["ZCARD", keys.outdated],
    )
    waiting = [loaded async for loaded in harness.reviews.queue.waiting()]
    calls = RunCalls(harness.store, harness.agents, tenant="default")
    outcome = await harness.decide(verdict, Approve())

    assert asked == [0, 0, 0]
    assert waiting == []
    assert await calls.pending(RunRef(agent="support", thread="t1")) == ()
    assert isinstance(outcome, Stale)


async def test_an_unstarted_call_ends_with_its_thread(harness: ServiceHarness) -> None:
    verdict, _ = await submitted(harness)

    await harness.submit(("look_up_order", {}))

    assert (await harness.item(verdict.item_id)).state is ItemState.LAPSED


async def test_a_call_of_a_gone_agent_is_not_rerun(harness: ServiceHarness) -> None:
    verdict, _ = await in_doubt(harness)

    outcome = await harness.decide(verdict, Reconcile(finding=Finding.RERUN))

    assert isinstance(outcome, Forbidden)
    assert "went on" in outcome.reason
    assert (await harness.item(verdict.item_id)).state is ItemState.IN_DOUBT


@pytest.mark.parametrize(
    ("tier", "words"),
    [("approve", "needs a person now"), ("deny", "no longer allows it")],
)
async def test_a_stricter_policy_ends_it_and_asks_nobody(
    harness: ServiceHarness, tier: str, words: str
) -> None:
    verdict, request = await submitted(harness)
    stricter = NOTIFYING.replace("post: {tier: notify", f"post: {{tier: {tier}")
    harness.put_policy(of=stricter)

    reply = await harness.agents.claim(request)

    assert isinstance(reply, Refused)
    assert words in reply.reason
    assert "did not run" in reply.reason
    item = await harness.item(verdict.item_id)
    assert (item.state, item.revoked is not None) == (ItemState.LAPSED, True)


async def test_a_notification_is_not_evaluated_again(harness: ServiceHarness) -> None:
    failing = NOTIFYING.replace(
        "  tell: {tier: notify, channel: C0OTHER}",
        "  tell: {tier: notify, raise: [{to: approve, when: recent.failures_1h > 0,"
        " because: it fails}]}",
    )
    harness.put_policy(of=failing)
    ref, (one, two) = await harness.submit(("tell", {}), ("tell", {}))
    await harness.ran(claim_of(ref, one), Result(ok=False))

    assert await harness.granted(claim_of(ref, two))
    _, (third,) = await harness.submit(("tell", {}))
    assert third.tier is Tier.APPROVE


async def test_each_person_reports_it_once(harness: ServiceHarness) -> None:
    verdict, _ = await submitted(harness)
    approval = await harness.approval(verdict.item_id)

    first = await harness.reviews.report(approval.id, KIM, "wrong channel")
    again = await harness.reviews.report(approval.id, KIM, "really")
    await harness.reviews.report(approval.id, person("U0DAN"), "")

    after = await harness.approval(verdict.item_id)
    assert (first, again) == (True, False)
    assert [(one.by.user, one.text) for one in after.remarks] == [
        ("U0KIM", "wrong channel"),
        ("U0DAN", ""),
    ]
    event, _ = await harness.audited(EventName.APPROVAL_REPORTED)
    assert (event.actor, event.reason) == ("T0/U0KIM", "wrong channel")
    assert event.data == {"gesture": "api"}
    assert (event.approval, event.policy_digest) == (
        approval.id,
        approval.policy_digest,
    )
