"""The gateway confirms an edit only as its own record has it, and tells no other."""

from __future__ import annotations

import pytest

from tests.service.desk import ANA, Desk
from twokey.gateway.approvals.decisions import Edit
from twokey.gateway.protocol.edits import edit_hash
from twokey.gateway.protocol.wire import TurnRef
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.store import Store


def at(thread: str) -> TurnRef:
    """Return the agent in a thread."""
    return TurnRef(agent="support", thread=thread, message_id="")


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def test_only_the_edit_that_was_made_is_confirmed(desk: Desk) -> None:
    click, claim = await desk.refund(100)
    args = {**(await desk.item(claim.item_id)).args, "amount": 50}
    await desk.reviews.decide(click, Edit(args=args), ANA)
    record = (await desk.item(claim.item_id)).edit
    assert record is not None
    true = edit_hash(record)
    forged = edit_hash(record.with_(reason="because I say so"))

    asked = {true: claim.item_id, forged: claim.item_id, "sha256:0": "junk"}
    elsewhere = AgentService(desk.store, lambda: desk.policy, tenant="other")

    assert (await desk.agents.edits_known(at("t1"), asked)).made == {true}
    assert (
        await desk.agents.edits_known(at("t1"), {true: "ap_s0_0.0"})
    ).made == frozenset()
    assert (await elsewhere.edits_known(at("t1"), asked)).made == frozenset()


@pytest.mark.parametrize("thread", ["t2", "t", "T1", ""])
async def test_an_edit_is_confirmed_in_its_own_thread_alone(
    desk: Desk, thread: str
) -> None:
    click, claim = await desk.refund(100)
    args = {**(await desk.item(claim.item_id)).args, "amount": 50}
    await desk.reviews.decide(click, Edit(args=args), ANA)
    record = (await desk.item(claim.item_id)).edit
    assert record is not None

    asked = {edit_hash(record): claim.item_id}

    assert (await desk.agents.edits_known(at(thread), asked)).made == frozenset()


async def test_a_call_that_nobody_edited_has_no_edit(desk: Desk) -> None:
    _, claim = await desk.refund(100)

    assert (
        await desk.agents.edits_known(at("t1"), {"": claim.item_id})
    ).made == frozenset()
