"""The gateway confirms an edit only by its own record, and reveals no other."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import EditOutcome, FailureKind, Result
from keyturn.gateway.protocol.wire import EditsKnown, TurnRef
from keyturn.gateway.service.run.agents import AgentService
from tests.service.decided_calls import claimed
from tests.service.harness import ANA, ServiceHarness


def at(thread: str) -> TurnRef:
    """Return the agent in a thread."""
    return TurnRef(agent="support", thread=thread, message_id="")


async def test_only_the_edit_that_was_made_is_confirmed(
    harness: ServiceHarness,
) -> None:
    click, claim = await harness.refund(100)
    args = {**(await harness.item(claim.item_id)).args, "amount": 50}
    await harness.reviews.decide(click, Edit(args=args), ANA)
    record = (await harness.item(claim.item_id)).edit
    assert record is not None
    true = edit_hash(record)
    forged = edit_hash(record.with_(reason="because I say so"))

    asked = {true: claim.item_id, forged: claim.item_id, "sha256:0": "junk"}
    elsewhere = AgentService(harness.store, lambda: harness.policy, tenant="other")

    assert (await harness.agents.edits_known(at("t1"), asked)).made.keys() == {true}
    assert (
        await harness.agents.edits_known(at("t1"), {true: "ap_default_0.0"})
    ).made == {}
    assert (await elsewhere.edits_known(at("t1"), asked)).made == {}


@pytest.mark.parametrize("failure", [None, *FailureKind])
@pytest.mark.parametrize("ok", [True, False])
async def test_an_edit_is_confirmed_with_the_outcome_that_the_record_proves(
    harness: ServiceHarness, failure: FailureKind | None, *, ok: bool
) -> None:
    click, claim = await harness.refund(100)
    args = {**(await harness.item(claim.item_id)).args, "amount": 50}
    await harness.reviews.decide(click, Edit(args=args), ANA)
    record = (await harness.item(claim.item_id)).edit
    assert record is not None

    async def confirmed() -> list[EditOutcome]:
        hashes = {edit_hash(record.with_(outcome=one)) for one in EditOutcome}
        asked = dict.fromkeys(hashes, claim.item_id)
        return [*(await harness.agents.edits_known(at("t1"), asked)).made.values()]

    before = await confirmed()
    granted = await claimed(harness, claim)
    during = await confirmed()
    result = Result(ok=ok, failure=None if ok else failure)
    await harness.agents.finish(claim.item_id, granted.fence, result)

    assert before == during == [EditOutcome.UNKNOWN]
    assert await confirmed() == [result.edit_outcome]


async def test_an_edit_whose_record_has_ended_is_confirmed_by_its_seal(
    harness: ServiceHarness,
) -> None:
    click, claim = await harness.refund(100)
    args = {**(await harness.item(claim.item_id)).args, "amount": 50}
    await harness.reviews.decide(click, Edit(args=args), ANA)
    granted = await claimed(harness, claim)
    await harness.agents.finish(claim.item_id, granted.fence, Result(ok=True))
    [edit] = await harness.agents.history(claim.ref.run_ref)
    [outcome] = await harness.agents.outcomes(claim.ref)
    await harness.command("FLUSHALL")
    forged = edit.with_(edited_args={"amount": 7})
    sealed = {edit_hash(edit): f"{claim.item_id} {edit.seal}"}

    known = await harness.agents.edits_known(at("t1"), sealed)
    others = [
        await harness.agents.edits_known(at("t2"), sealed),
        await harness.agents.edits_known(at("t1"), {edit_hash(edit): claim.item_id}),
        await harness.agents.edits_known(
            at("t1"), {edit_hash(forged): f"{claim.item_id} {edit.seal}"}
        ),
    ]

    assert edit.seal
    assert outcome.edit == edit
    assert granted.edit == edit.with_(outcome=EditOutcome.UNKNOWN)
    assert known == EditsKnown(made={edit_hash(edit): EditOutcome.UNKNOWN})
    assert [one.made for one in others] == [{}, {}, {}]
    assert all(one.unknown for one in others)


@pytest.mark.parametrize("thread", ["t2", "t", "T1", ""])
async def test_an_edit_is_confirmed_in_its_own_thread_alone(
    harness: ServiceHarness, thread: str
) -> None:
    click, claim = await harness.refund(100)
    args = {**(await harness.item(claim.item_id)).args, "amount": 50}
    await harness.reviews.decide(click, Edit(args=args), ANA)
    record = (await harness.item(claim.item_id)).edit
    assert record is not None

    asked = {edit_hash(record): claim.item_id}

    assert (await harness.agents.edits_known(at(thread), asked)).made == {}
