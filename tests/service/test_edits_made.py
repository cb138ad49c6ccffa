"""The gateway confirms an edit only as its own record has it, and tells no other."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Edit
from twokey.gateway.protocol.edits import edit_hash
from twokey.gateway.protocol.wire import TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.store import Store


def at(thread: str) -> TurnRef:
    """Return the agent in a thread."""
    return TurnRef(agent="support", thread=thread, message_id="")


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


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

    assert (await harness.agents.edits_known(at("t1"), asked)).made == {true}
    assert (
        await harness.agents.edits_known(at("t1"), {true: "ap_s0_0.0"})
    ).made == frozenset()
    assert (await elsewhere.edits_known(at("t1"), asked)).made == frozenset()


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

    assert (await harness.agents.edits_known(at(thread), asked)).made == frozenset()


async def test_a_call_that_nobody_edited_has_no_edit(harness: ServiceHarness) -> None:
    _, claim = await harness.refund(100)

    assert (
        await harness.agents.edits_known(at("t1"), {"": claim.item_id})
    ).made == frozenset()
