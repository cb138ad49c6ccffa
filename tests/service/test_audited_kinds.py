"""Each kind of thing that happens to a call is one entry of the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Forbidden,
    Reconcile,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Finding, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.trust.audit_bundle import calls_of
from tests.service.decided_calls import decided
from tests.service.harness import BEN, EVE, POLICY, ServiceHarness

REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
Scene = Callable[[ServiceHarness], Awaitable[object]]


def submitted(tool: str) -> Scene:
    return lambda harness: harness.submit((tool, {"amount": 120}))


def said(decision: Decision, tool: str = "process_refund") -> Scene:
    return lambda harness: decided(harness, decision, tool=tool)


async def ended(harness: ServiceHarness, *, ok: bool) -> None:
    claim = await decided(harness)
    await harness.ran(claim, Result(ok=ok))


async def given_back(harness: ServiceHarness) -> None:
    claim = await decided(harness)
    granted = await harness.granted(claim)
    await harness.agents.release(claim.item_id, granted.fence)


async def in_doubt(harness: ServiceHarness) -> None:
    claim = await decided(harness)
    await harness.granted(claim)
    await harness.doubt(claim.item_id)
    await harness.decide(claim.item_id, Reconcile(finding=Finding.EXECUTED))


async def frozen(harness: ServiceHarness) -> None:
    await harness.reviews.freezes.freeze(REFUNDS, "T0/U0ANA", "wrong amounts")
    await harness.reviews.freezes.unfreeze(REFUNDS, "T0/U0BEN")


async def refused(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    for _ in range(3):
        assert isinstance(
            await harness.reviews.decide(click, Approve(), EVE), Forbidden
        )


N = EventName
KINDS: dict[str, tuple[Scene, tuple[EventName, ...]]] = {
    "a submission": (submitted("process_refund"), (N.APPROVAL_OPENED,)),
    "a verdict of the policy": (submitted("drop_table"), (N.CALL_DENIED,)),
    "a call that the policy lets run": (submitted("look_up_order"), (N.CALL_RAN,)),
    "a vote": (said(Approve(), "wire_money"), (N.APPROVAL_OPENED, N.ITEM_VOTED)),
    "an approval": (said(Approve()), (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED)),
    "an edit": (
        said(Edit(args={"amount": 1})),
        (N.APPROVAL_OPENED, N.ITEM_EDITED, N.ITEM_AUTHORIZED),
    ),
    "a rejection": (said(Reject(reason="no")), (N.APPROVAL_OPENED, N.ITEM_REJECTED)),
    "an answer": (said(Respond(message="no")), (N.APPROVAL_OPENED, N.ITEM_ANSWERED)),
    "a refusal": (refused, (N.APPROVAL_OPENED, N.DECISION_REFUSED)),
    "a claim and a result": (
        lambda harness: ended(harness, ok=True),
        (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED, N.ITEM_EXECUTING, N.ITEM_EXECUTED),
    ),
    "a failure": (
        lambda harness: ended(harness, ok=False),
        (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED, N.ITEM_EXECUTING, N.ITEM_FAILED),
    ),
    "a claim that is given back": (
        given_back,
        (N.APPROVAL_OPENED, N.ITEM_AUTHORIZED, N.ITEM_EXECUTING, N.ITEM_AUTHORIZED),
    ),
    "a doubt and its end": (
        in_doubt,
        (
            N.APPROVAL_OPENED,
            N.ITEM_AUTHORIZED,
            N.ITEM_EXECUTING,
            N.ITEM_IN_DOUBT,
            N.ITEM_RECONCILED,
        ),
    ),
    "a freeze": (frozen, (N.FREEZE_SET, N.FREEZE_LIFTED)),
}
"""Elsewhere: API keys (tests/api), views of a full text (tests/bot), changes of the
policy (tests/stories), and changes of signing keys (test_audit_writing.py)."""


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_one_entry(harness: ServiceHarness, kind: str) -> None:
    scene, expected = KINDS[kind]

    await scene(harness)

    assert tuple(one.name for one in await harness.audited()) == expected


async def test_a_refusal_names_person_act_and_reason(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    asked = click.with_(request_digest="sha256:" + "7" * 64)

    outcome = await harness.reviews.decide(asked, Reject(reason="no"), EVE)
    await harness.reviews.decide(click, Approve(), BEN)

    [_, entry, _] = await harness.audited()
    assert isinstance(outcome, Forbidden)
    assert (entry.name, entry.actor) == (N.DECISION_REFUSED, "T0/U0EVE")
    assert (entry.approval, entry.item) == (click.approval, f"{click.approval}.0")
    assert entry.reason == outcome.reason
    assert entry.request_digest == asked.request_digest
    assert entry.data["verb"] == "reject"


@pytest.mark.parametrize(
    "tools",
    [
        ["process_refund"],
        ["wire_money"],
        ["process_refund", "send_email", "process_refund"],
        ["read_mail"],
    ],
    ids="-".join,
)
async def test_the_opening_names_the_requester_and_each_call(
    harness: ServiceHarness, tools: list[str]
) -> None:
    told = POLICY.replace("look_up_order: {tier: auto}", "read_mail: {tier: notify}")
    harness.put_policy(of=told)
    calls: list[tuple[str, JsonObject]] = [
        (tool, {"amount": 120.5 + n}) for n, tool in enumerate(tools)
    ]

    _, verdicts = await harness.submit(*calls)

    [opened] = await harness.audited(EventName.APPROVAL_OPENED)
    assert opened.actor == "T0/U0DAN"
    # With a point, which no hash has.
    assert "120.5" not in opened.model_dump_json()
    found = [
        (it["item"], it["tool"], it["tier"], it["hash"]) for it in calls_of(opened)
    ]
    assert found == [(v.item_id, v.tool, v.tier, v.action_hash) for v in verdicts]
