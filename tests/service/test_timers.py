"""An approval that waits reminds people once, and calls others once."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from gateway.approvals.decisions import Approve, Settled
from gateway.approvals.events import Event, EventName
from gateway.approvals.record import Approval
from gateway.policy.load import load_policy
from gateway.service.sweep import Sweeper
from gateway.store.connection import text
from gateway.store.outbox import audit_entries
from gateway.store.store import Store
from gateway.store.timers import Timer, TimerKind
from tests.conftest import listed
from tests.service.desk import ANA, POLICY, Desk, person

WAITING = """tiers:
  approve: {remind_at: 50%, escalate_at: 80%, escalate_to: senior}
  escalate: {approvals: 2, of: [support, senior], at_least: {senior: 1},
             remind_at: 25%, escalate_at: 75%, escalate_to: "#leads"}
"""
PATIENT = POLICY.replace(POLICY[POLICY.index("tiers:") : POLICY.index("protect:")], "")
HOUR = 3_600_000


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store, load_policy(PATIENT + WAITING, "policy.yml"))


async def due(desk: Desk, approval: str, *kinds: TimerKind) -> None:
    """Move the clock: let timers of an approval be due."""
    keys = desk.store.keys_of_tenant("default")
    for kind in kinds:
        name = str(Timer(approval=approval, kind=kind))
        await desk.store.conn.command("ZADD", keys.timers, "XX", 1, name)


async def timers(desk: Desk) -> list[str]:
    keys = desk.store.keys_of_tenant("default")
    reply = await desk.store.conn.command("ZRANGE", keys.timers, 0, -1)
    return sorted(text(one) for one in listed(reply))


async def told(desk: Desk, *names: EventName) -> list[Event]:
    keys = desk.store.keys_of_tenant("default")
    entries = await audit_entries(desk.store.conn, keys)
    return [event for event in entries if event.name in names]


async def opened(desk: Desk, tool: str = "process_refund") -> Approval:
    # A thread of its own: a newer turn would supersede this one.
    thread = secrets.token_hex(4)
    _, (verdict,) = await desk.submit((tool, {"n": 1}), thread=thread)
    return await desk.approval(verdict.item_id)


async def test_the_policys_shares_of_the_time_become_timers(desk: Desk) -> None:
    approval = await opened(desk)

    waiting = approval.waiting
    assert (waiting.remind_at_ms, waiting.escalate_at_ms) == (HOUR // 2, HOUR * 4 // 5)
    assert waiting.called == ("senior",)
    keys = desk.store.keys_of_tenant("default")
    name = f"{approval.id} remind"
    score = await desk.store.conn.command("ZSCORE", keys.timers, name)
    assert float(text(score)) == approval.created_at_ms + HOUR // 2


async def test_a_card_is_as_impatient_as_its_most_impatient_call(desk: Desk) -> None:
    _, verdicts = await desk.submit(
        ("process_refund", {"n": 1}), ("wire_money", {"n": 2})
    )

    approval = await desk.approval(verdicts[0].item_id)

    waiting = approval.waiting
    assert (waiting.remind_at_ms, waiting.escalate_at_ms) == (HOUR // 4, HOUR * 3 // 4)
    assert waiting.called == ("senior", "#leads")


async def test_a_tier_without_shares_sets_no_timer(store: Store) -> None:
    desk = Desk(store)

    await opened(desk)

    assert await timers(desk) == []


async def test_nothing_rings_before_its_time(desk: Desk) -> None:
    approval = await opened(desk)
    keys = desk.store.keys_of_tenant("default")
    timer = Timer(approval=approval.id, kind=TimerKind.REMIND)

    await desk.sweeper.sweep()
    has_rung = await desk.sweeper.ring(keys, timer)

    assert not has_rung
    assert await told(desk, EventName.APPROVAL_REMINDED) == []
    assert len(await timers(desk)) == 2


async def test_any_number_of_replicas_remind_and_call_once(desk: Desk) -> None:
    approvals = [await opened(desk, tool) for tool in ("process_refund", "wire_money")]
    for approval in approvals:
        await due(desk, approval.id, TimerKind.REMIND, TimerKind.ESCALATE)

    await asyncio.gather(*(Sweeper(desk.store).sweep() for _ in range(8)))

    for name in (EventName.APPROVAL_REMINDED, EventName.APPROVAL_ESCALATED):
        events = await told(desk, name)
        assert sorted(one.approval for one in events) == sorted(a.id for a in approvals)
    assert await timers(desk) == []


async def test_an_escalation_is_kept_and_says_who_is_called(desk: Desk) -> None:
    before = await opened(desk)
    await due(desk, before.id, TimerKind.ESCALATE)

    await desk.sweeper.sweep()

    after = await desk.approval(before.items[0].id)
    assert after.escalated_at_ms >= before.created_at_ms
    assert after.rev == before.rev + 1
    assert after.version == before.version
    assert after.items == before.items
    (event,) = await told(desk, EventName.APPROVAL_ESCALATED)
    assert event.reason == "senior"


async def test_a_reminder_changes_nothing_of_the_record(desk: Desk) -> None:
    before = await opened(desk)
    await due(desk, before.id, TimerKind.REMIND)

    await desk.sweeper.sweep()

    assert await desk.approval(before.items[0].id) == before


async def test_whoever_is_called_later_may_decide(desk: Desk) -> None:
    click, _ = await desk.refund()
    await due(desk, click.approval, TimerKind.ESCALATE)
    await desk.sweeper.sweep()

    outcome = await desk.reviews.decide(click, Approve(), person("U0CHLOE"))

    assert isinstance(outcome, Settled)


async def test_a_decided_approval_reminds_nobody(desk: Desk) -> None:
    click, _ = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    await due(desk, click.approval, TimerKind.REMIND, TimerKind.ESCALATE)

    await desk.sweeper.sweep()

    assert not await told(
        desk, EventName.APPROVAL_REMINDED, EventName.APPROVAL_ESCALATED
    )
    assert await timers(desk) == []


async def test_a_timer_that_is_due_after_the_end_is_silent(desk: Desk) -> None:
    approval = await opened(desk)
    await due(desk, approval.id, TimerKind.REMIND)
    await desk.overdue(approval.id)

    await desk.sweeper.sweep()

    assert not await told(desk, EventName.APPROVAL_REMINDED)
    assert len(await told(desk, EventName.ITEM_EXPIRED)) == 1


async def test_what_is_kept_no_longer_leaves_neither_timer_nor_deadline(
    desk: Desk,
) -> None:
    approval = await opened(desk)
    keys = desk.store.keys_of_tenant("default")
    await due(desk, approval.id, TimerKind.REMIND, TimerKind.ESCALATE)
    await desk.overdue(approval.id)
    await desk.store.conn.command("DEL", keys.head(approval.id))

    await desk.sweeper.sweep()

    assert await timers(desk) == []
    assert await desk.store.conn.command("ZCARD", keys.expiry) == 0


async def test_a_herd_that_is_due_at_once_ends_in_one_sweep(desk: Desk) -> None:
    approvals = [await opened(desk) for _ in range(250)]
    for approval in approvals:
        await desk.overdue(approval.id)

    ended = await asyncio.gather(*(Sweeper(desk.store).sweep() for _ in range(2)))

    assert sum(ended) == 250
    events = await told(desk, EventName.ITEM_EXPIRED)
    assert len({event.approval for event in events}) == len(events) == 250
