"""Two tenants on one shard share nothing, though their agents and threads are equal."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef, VerdictKind
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store

KIM = Person(team="T9", user="U9", name="Kim")
REFUND: JsonObject = {"amount": 1, "order_id": "1"}
TURN = Turn(
    ref=TurnRef(agent="support", thread="t1", message_id="m9"),
    calls=(ProposedCall(tool="process_refund", args=REFUND, tool_call_id="c1"),),
)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


@pytest.fixture
def other(harness: ServiceHarness) -> ReviewService:
    """Return the reviews of another tenant on the same store."""
    return ReviewService(harness.store, lambda: harness.policy, tenant="other")


async def ask(reviews: ReviewService, by: Person, once: str = "") -> bool:
    return await reviews.ask_agent(
        "support", "t1", "hello", requester=by, origin=None, message_key=once
    )


async def test_nobody_is_the_requester_of_another_tenants_call(
    harness: ServiceHarness, other: ReviewService
) -> None:
    await ask(other, KIM)
    (verdict,) = await harness.agents.submit(TURN)

    approval = await harness.approval(verdict.item_id)
    assert (approval.requester, approval.principals) == (None, ())


async def test_a_message_of_one_tenant_is_not_known_to_another(
    harness: ServiceHarness, other: ReviewService
) -> None:
    assert await ask(harness.reviews, KIM, "event:1")
    assert await ask(other, KIM, "event:1")


async def test_a_thread_of_another_tenant_is_run_beside_ours(store: Store) -> None:
    keys = store.keys_of_tenant("default")

    async with (
        store.threads.lease(keys, "default", "support", "t1"),
        store.threads.lease(keys, "other", "support", "t1"),
    ):
        assert store.keys_of_tenant("other").shard == keys.shard


async def test_a_turn_of_another_tenant_ends_none_of_ours(
    harness: ServiceHarness, other: ReviewService
) -> None:
    click, claim = await harness.refund(1)
    agents = AgentService(harness.store, lambda: harness.policy, tenant="other")

    (verdict,) = await agents.submit(TURN)

    assert verdict.kind is VerdictKind.HOLD
    assert (await harness.item(claim.item_id)).is_pending
    assert await harness.opened() == [click.approval]
    assert click.approval not in await harness.opened("other")
    assert (await other.decide(click, Approve(), ANA)).kind == "unknown"
