"""Agents, threads and rules that were chosen to be taken for others."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Approve, Click, Edit, Reconcile
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.windows import window_key
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import Finding, ItemState, RunRef
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, POLICY, ServiceHarness

REFUND = "process_refund: {tier: approve}"


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


def enforce(harness: ServiceHarness, old: str, new: str) -> None:
    """Put another policy in force."""
    assert old in POLICY
    harness.policy = load_policy(POLICY.replace(old, new), "policy.yml")


async def in_doubt(harness: ServiceHarness) -> tuple[Click, str]:
    """Interrupt a refund while it runs."""
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    await harness.agents.claim(claim)
    await harness.owner_dies(claim.item_id)
    await harness.sweeper.sweep()
    assert (await harness.item(claim.item_id)).state is ItemState.IN_DOUBT
    return click, claim.item_id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("users: [U0ANA, U0BEN, U0DAN]", "users: [U0ANA, U0DAN]"),
        (REFUND, "process_refund: {tier: escalate}"),
        (REFUND, "process_refund: {tier: approve, reviewers: senior}"),
        (REFUND, "process_refund: {tier: approve, allow: [reject]}"),
    ],
)
async def test_who_may_no_longer_approve_has_nothing_run_again(
    harness: ServiceHarness, old: str, new: str
) -> None:
    click, item_id = await in_doubt(harness)
    enforce(harness, old, new)
    again, skip = (Reconcile(finding=one) for one in (Finding.RERUN, Finding.SKIP))

    outcome = await harness.reviews.decide(click, again, BEN)

    # Where others are needed too, one alone is counted and changes nothing.
    needs_others = "escalate" in new or "senior" in new
    assert outcome.kind == ("voted" if needs_others else "forbidden")
    assert (await harness.item(item_id)).state is ItemState.IN_DOUBT
    assert (await harness.reviews.decide(click, skip, ANA)).kind == "decided"


async def test_an_edit_of_another_agent_in_a_thread_of_the_same_name_is_not_told(
    harness: ServiceHarness,
) -> None:
    """Two agents with separate checkpoints may both have a thread "t1"."""
    click, claim = await harness.refund(100)
    args = {**(await harness.item(claim.item_id)).args, "amount": 50}
    await harness.reviews.decide(click, Edit(args=args), ANA)
    record = (await harness.item(claim.item_id)).edit
    assert record is not None
    asked = {edit_hash(record): claim.item_id}
    own = TurnRef(agent="support", thread="t1", message_id="")
    outer = RunRef(agent="flow", thread="t1")
    others = [
        own.with_(agent="billing"),
        own.with_(agent="billing", ns="tools:1", nested_in=outer),
        own.with_(thread="T1"),
    ]

    assert (await harness.agents.edits_known(own, asked)).made.keys() == asked.keys()
    assert (
        await harness.agents.edits_known(own.with_(nested_in=outer), asked)
    ).made.keys() == asked.keys()
    for other in others:
        assert (await harness.agents.edits_known(other, asked)).made == {}


async def test_an_edit_inside_one_agent_is_not_told_inside_another(
    harness: ServiceHarness,
) -> None:
    one, other = (RunRef(agent=name, thread="t1") for name in ("boss", "chief"))
    payer = TurnRef(agent="payer", thread="t1", ns="tools:1", message_id="m")
    inside = payer.with_(nested_in=one)
    call = ProposedCall(tool="process_refund", args={"amount": 9}, tool_call_id="c")
    (verdict,) = await harness.agents.submit(Turn(ref=inside, calls=(call,)))
    await harness.reviews.decide(
        await harness.click(verdict), Edit(args={"amount": 1}), ANA
    )
    record = (await harness.item(verdict.item_id)).edit
    assert record is not None
    asked = {edit_hash(record): verdict.item_id}

    assert (await harness.agents.edits_known(inside, asked)).made.keys() == asked.keys()
    elsewhere = inside.with_(nested_in=other)
    assert (await harness.agents.edits_known(elsewhere, asked)).made == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cus_1", "cus\u200b_1"),
        ("cus_1", "\ufeffcus\u00ad_1"),
        (["CUS_1"], ["cus_1"]),
        ({"id": 7}, {"id": " 7 "}),
        ("Ana  Maria", "ana\u00a0maria"),
    ],
)
def test_one_customer_in_two_spellings_has_one_window(
    one: JsonValue, other: JsonValue
) -> None:
    assert window_key(one) == window_key(other)


@pytest.mark.parametrize("nobody", ["\u200b", " \u2060 ", "\u00ad"])
def test_somebody_who_is_invisible_is_nobody(nobody: str) -> None:
    with pytest.raises(ValueError, match="has no usable value"):
        window_key(nobody)
