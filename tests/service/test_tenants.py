"""Tenants of one store share nothing, though their agents and threads are equal."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals.decisions import Approve, Decided, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Claimed,
    ProposedCall,
    Refused,
    Turn,
    TurnRef,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, TENANTS, ServiceHarness

KIM = Person(team="T9", user="U9", name="Kim")
REFUND: JsonObject = {"amount": 1, "order_id": "1"}
TURN = Turn(
    ref=TurnRef(agent="support", thread="t1", message_id="m9"),
    calls=(ProposedCall(tool="process_refund", args=REFUND, tool_call_id="c1"),),
)


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
    keys, other = store.keys_of_tenant("default"), store.keys_of_tenant("other")

    async with (
        store.threads.lease(keys, "support", "t1"),
        store.threads.lease(other, "support", "t1"),
    ):
        pass


@pytest.fixture
def sides(store: Store) -> list[ServiceHarness]:
    return [ServiceHarness(store, tenant=tenant) for tenant in TENANTS]


async def test_each_tenant_has_all_of_a_calls_life(sides: list[ServiceHarness]) -> None:
    asked = await asyncio.gather(*(side.refund() for side in sides))

    for side, (click, claim) in zip(sides, asked, strict=True):
        assert f"_{side.keys.tenant}_" in click.approval
        assert isinstance(await side.reviews.decide(click, Approve(), ANA), Decided)
        assert await side.store.queue(side.keys).depth() >= 1
        await side.ran(claim)
        assert (await side.item(claim.item_id)).state is ItemState.EXECUTED
        # One of each: nothing of the other tenants is there.
        assert len(await side.audited(EventName.ITEM_EXECUTED)) == 1


async def test_nobody_decides_for_another_tenant(sides: list[ServiceHarness]) -> None:
    click, claim = await sides[0].refund()

    for other in sides[1:]:
        assert (await other.reviews.decide(click, Reject(), ANA)).kind == "unknown"
        assert isinstance(await other.agents.claim(claim), Refused)

    assert (await sides[0].item(claim.item_id)).is_pending


async def test_a_sweep_ends_calls_of_its_tenant_alone(
    sides: list[ServiceHarness],
) -> None:
    clicks = [(await side.refund())[0] for side in sides]
    for side, click in zip(sides, clicks, strict=True):
        await side.overdue(click.approval)

    assert await sides[0].sweeper.sweep() == 1

    waits = [
        (await side.item(f"{click.approval}.0")).is_pending
        for side, click in zip(sides, clicks, strict=True)
    ]
    assert waits == [False, True, True]


async def test_a_freeze_stops_its_own_tenant_alone(sides: list[ServiceHarness]) -> None:
    asked = [await side.refund() for side in sides]
    for side, (click, _) in zip(sides, asked, strict=True):
        await side.reviews.decide(click, Approve(), ANA)

    tenant = FreezeScope(kind=ScopeKind.TENANT)
    await sides[1].reviews.freezes.freeze(tenant, "T0/U0ANA", "wrong refunds")

    claims = [
        await side.agents.claim(claim)
        for side, (_, claim) in zip(sides, asked, strict=True)
    ]
    assert [type(one) for one in claims] == [Claimed, Refused, Claimed]
