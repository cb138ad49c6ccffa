"""A decision is written once, with its event, its audit entry and its job."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Decision,
    Edit,
    Expired,
    GestureDecided,
    Reject,
    Respond,
    Unknown,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import ProposedCall, Turn
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.service.windowed import refund, windowed


async def test_two_calls_with_one_id_are_both_denied(harness: ServiceHarness) -> None:
    ref, _ = await harness.submit(("look_up_order", {}))
    twin = ProposedCall(tool="process_refund", args={"amount": 1}, tool_call_id="c0")
    other = twin.with_(tool_call_id="c1")
    turn = Turn(ref=ref.with_(message_id="twins"), calls=(twin, other, twin))

    verdicts = await harness.agents.submit(turn)

    assert [verdict.kind for verdict in verdicts] == ["deny", "hold", "deny"]
    assert "share the id 'c0'" in verdicts[0].reason


@pytest.mark.parametrize(
    ("decision", "state", "event"),
    [
        (Approve(), ItemState.AUTHORIZED, EventName.ITEM_AUTHORIZED),
        (Edit(args={"amount": 5}), ItemState.AUTHORIZED, EventName.ITEM_AUTHORIZED),
        (Reject(reason="no"), ItemState.REJECTED, EventName.ITEM_REJECTED),
        (Respond(message="ask"), ItemState.ANSWERED, EventName.ITEM_ANSWERED),
    ],
)
async def test_state_event_audit_and_job_are_one_step(
    harness: ServiceHarness, decision: Decision, state: ItemState, event: EventName
) -> None:
    click, claim = await harness.refund()

    outcome = await harness.reviews.decide(click, decision, ANA)

    audit = await harness.audited()
    assert isinstance(outcome, Decided)
    assert (await harness.item(claim.item_id)).state is state
    assert audit[-1].name is event
    assert audit[-1].actor == "T0/U0ANA"
    assert await harness.jobs() == 1


async def test_a_late_click_is_expired_by_the_stores_clock(
    harness: ServiceHarness,
) -> None:
    click, claim = await harness.refund()
    await harness.overdue(click.approval)

    outcome = await harness.reviews.decide(click, Approve(), ANA)

    assert isinstance(outcome, Expired)
    assert (await harness.item(claim.item_id)).state is ItemState.EXPIRED
    assert await harness.jobs() == 1


async def test_sweepers_on_every_replica_expire_once(harness: ServiceHarness) -> None:
    clicks = [(await harness.refund(thread=f"t{n}"))[0] for n in range(20)]
    for click in clicks:
        await harness.overdue(click.approval)

    ended = await asyncio.gather(*(harness.sweeper.sweep() for _ in range(4)))

    assert sum(ended) == 20
    assert await harness.jobs() == 20
    assert await harness.sweeper.sweep() == 0


@pytest.mark.parametrize(
    "approval",
    ["", "ap_default_nothex", "ap_default_" + "0" * 32, "ap_another_" + "0" * 32, "é"],
)
async def test_an_unknown_approval_is_unknown_and_not_an_error(
    harness: ServiceHarness, approval: str
) -> None:
    click, _ = await harness.refund()

    outcome = await harness.reviews.decide(
        click.with_(approval=approval), Approve(), ANA
    )

    assert isinstance(outcome, Unknown)


@pytest.mark.parametrize(("amount", "waiting"), [(150, ()), (300, (0, 1))])
async def test_the_edits_of_one_batch_decision_are_added_up(
    store: Store, amount: int, waiting: tuple[int, ...]
) -> None:
    harness = windowed(store)
    _, verdicts = await harness.submit(*[refund(100)] * 7)
    approval = await harness.approval(verdicts[0].item_id)
    edit = Edit(args=refund(amount)[1])
    partition: dict[int, Decision | None] = dict.fromkeys(range(7))

    outcome = await harness.decide_card(approval, {**partition, 0: edit, 1: edit})

    assert isinstance(outcome, GestureDecided)
    assert (outcome.edited, outcome.waiting) == ((0, 1), waiting)
