"""The claim applies the current policy: a forbidden or raised call does not run."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.approvals.revoking import FORBIDDEN, NEEDS_MORE, NOBODY, TOO_OLD
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import (
    AnswerKind,
    Claimed,
    Refused,
    Reopened,
)
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, ServiceHarness, claim_of
from tests.store_secrets import SECRETS

REFUND = "process_refund: {tier: approve}"
SUPPORT = "support: {users: [U0ANA, U0BEN, U0DAN]}"
RAISING = "raise: [{to: escalate, when: args.amount > 500, because: large}]"
ESCALATED = "process_refund: {tier: escalate}"


@pytest.mark.parametrize(
    "now",
    ["{tier: deny}", "{tier: approve, allow: [reject, respond]}"],
)
async def test_what_the_current_policy_forbids_ends_with_the_reason(
    harness: ServiceHarness, now: str
) -> None:
    claim = await harness.approved()
    harness.put_policy((REFUND, f"process_refund: {now}"))

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{FORBIDDEN[:-1]}, so the call did not run."
    item = await harness.item(claim.item_id)
    assert item.state is ItemState.LAPSED
    [event] = await harness.announced(EventName.ITEM_LAPSED)
    assert (event.reason, event.actor) == (FORBIDDEN, "keyturn")
    assert event.policy_digest == harness.policy.digest
    answer = answer_for(item)
    assert answer
    assert answer.message == reply.reason
    assert await harness.agents.claim(claim) == reply, "and it stays so"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (REFUND, ESCALATED),
        (SUPPORT, "support: {users: [U0BEN, U0DAN]}"),
        (REFUND, "process_refund: {tier: approve, needs: senior}"),
        (REFUND, f"{REFUND[:-1]}, {RAISING}}}"),
    ],
    ids=["tier", "approver", "needs", "rule"],
)
async def test_what_needs_more_people_at_the_claim_goes_back_to_them(
    harness: ServiceHarness, old: str, new: str
) -> None:
    claim = await harness.approved()
    before = await harness.approval(claim.item_id)
    harness.put_policy((old, new))

    reply = await harness.agents.claim(claim)

    assert reply == Reopened(reason=NEEDS_MORE)
    after = await harness.approval(claim.item_id)
    item = after.items[0]
    assert item.state is ItemState.PENDING
    assert item.decision is None
    assert after.version == before.version + 1
    assert after.expires_at_ms >= before.expires_at_ms
    [event] = await harness.announced(EventName.ITEM_REOPENED)
    assert (event.reason, event.actor) == (NEEDS_MORE, "keyturn")
    assert await harness.agents.claim(claim) == reply, (
        "it waits, and is asked about again"
    )


async def test_what_nobody_may_approve_by_both_policies_ends(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    harness.put_policy((SUPPORT, "support: {users: [U0EVE]}"))

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{NOBODY[:-1]}, so the call did not run."
    assert (await harness.item(claim.item_id)).state is ItemState.LAPSED


async def test_an_edited_call_that_went_back_runs_as_it_was_edited(
    harness: ServiceHarness,
) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Edit(args={"amount": 5}, reason="less"), ANA)
    harness.put_policy((SUPPORT, "support: {users: [U0BEN, U0DAN]}"))
    assert isinstance(await harness.agents.claim(claim), Reopened)

    await harness.decide(claim.item_id, Approve(), BEN)
    answer = answer_for(await harness.item(claim.item_id))
    reply = await harness.agents.claim(claim)

    assert answer
    assert (answer.type, answer.args) == (AnswerKind.EDIT, {"amount": 5})
    assert isinstance(reply, Claimed)
    assert reply.edit
    assert reply.edit.edited_args == {"amount": 5}


async def test_a_looser_policy_changes_nothing_for_a_claim(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    harness.put_policy((REFUND, "process_refund: {tier: auto}"))

    assert isinstance(await harness.agents.claim(claim), Claimed)


async def test_the_shorter_authorization_of_then_and_now_counts(
    harness: ServiceHarness,
) -> None:
    harness.put_policy((REFUND, "process_refund: {tier: approve, authorization: 15m}"))
    click, claim = await harness.refund()
    harness.put_policy((REFUND, "process_refund: {tier: approve, authorization: 2h}"))
    await harness.reviews.decide(click, Approve(), ANA)
    item = await harness.item(claim.item_id)

    assert item.lapses_at_ms - item.changed_at_ms == 15 * 60_000


async def test_an_authorization_older_than_the_policy_lets_it_be_ends(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    await harness.authorized_ago(claim.item_id, 10 * 60_000)
    harness.put_policy((REFUND, "process_refund: {tier: approve, authorization: 5m}"))

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{TOO_OLD[:-1]}, so the call did not run."
    assert (await harness.item(claim.item_id)).state is ItemState.LAPSED


async def test_a_dead_attempt_is_not_repeated_when_the_policy_forbids_it(
    harness: ServiceHarness,
) -> None:
    ref, (verdict,) = await harness.submit(("send_email", {"to": "ana@example.org"}))
    await harness.decide(verdict, Approve())
    claim = claim_of(ref, verdict)
    assert isinstance(await harness.agents.claim(claim), Claimed)
    await harness.owner_dies(verdict.item_id)
    harness.put_policy(("send_email: {tier: approve", "send_email: {tier: deny"))

    reply = await harness.agents.claim(claim.with_(owner="w2"))

    assert reply.kind == "in_doubt"


async def test_a_call_that_was_given_back_meanwhile_is_evaluated_before_it_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    claim = await harness.approved()
    first = await harness.granted(claim)
    harness.put_policy((REFUND, "process_refund: {tier: deny}"))
    evalsha = store.conn.evalsha
    of_first = Store(store.conn.url, secrets=SECRETS, lease_ms=2000)

    async def given_back_before(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(store.conn, "evalsha", evalsha)
        await ServiceHarness(of_first).agents.release(claim.item_id, first.fence)
        await of_first.close()
        return await evalsha(*args, **options)

    await harness.owner_dies(claim.item_id)
    monkeypatch.setattr(store.conn, "evalsha", given_back_before)
    between = await harness.agents.claim(claim.with_(owner="w2"))
    after = await harness.agents.claim(claim.with_(owner="w2"))

    assert isinstance(between, Refused)
    assert isinstance(after, Refused)
