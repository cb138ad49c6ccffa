"""An approval that waits reminds people once, and calls others once."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tests.lifetimes import listed, lose_records
from tests.service.desk import ANA, BEN, POLICY, Desk, person
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Approve, Edit, Settled, Unknown
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.timing import TimerKind
from twokey.gateway.policy.load import load_policy
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.service.timing import TimeService
from twokey.gateway.store.connection import text
from twokey.gateway.store.outbox import audit_entries
from twokey.gateway.store.store import Store
from twokey.gateway.store.timers import Timer

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


async def test_a_card_is_as_impatient_as_its_most_impatient_call(store: Store) -> None:
    hasty = PATIENT.replace("idempotent: true", "expires_in: 20m")
    desk = Desk(store, load_policy(hasty + WAITING, "policy.yml"))
    _, verdicts = await desk.submit(
        ("process_refund", {"n": 1}), ("send_email", {"n": 2})
    )

    approval = await desk.approval(verdicts[0].item_id)

    waiting = approval.waiting
    assert (waiting.remind_at_ms, waiting.escalate_at_ms) == (HOUR // 6, HOUR * 4 // 15)
    assert waiting.called == ("senior",)


async def test_a_tier_without_shares_sets_no_timer(store: Store) -> None:
    desk = Desk(store)

    await opened(desk)

    assert await timers(desk) == []


async def test_nothing_rings_before_its_time(desk: Desk) -> None:
    approval = await opened(desk)
    keys = desk.store.keys_of_tenant("default")
    timer = Timer(approval=approval.id, kind=TimerKind.REMIND)

    await desk.sweeper.sweep()
    has_rung = await desk.sweeper.fire(keys, timer)

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


async def test_a_reminder_changes_nothing_but_that_it_was_said(desk: Desk) -> None:
    before = await opened(desk)
    await due(desk, before.id, TimerKind.REMIND)

    await desk.sweeper.sweep()

    after = await desk.approval(before.items[0].id)
    assert after.reminded_at_ms >= before.created_at_ms
    assert after == before.with_(rev=2, reminded_at_ms=after.reminded_at_ms)


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
    await lose_records(desk.store.conn)

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


async def test_more_time_moves_every_deadline_in_one_step(desk: Desk) -> None:
    before = await opened(desk)
    keys = desk.store.keys_of_tenant("default")

    result = await desk.reviews.times.extend(before.id, ANA)

    assert isinstance(result, Change)
    after = await desk.approval(before.items[0].id)
    assert after == result.approval
    assert after.expires_at_ms == before.expires_at_ms + HOUR // 2
    waits = keys.waiting("default", "support")
    for key, member in ((keys.expiry, before.id), (waits, before.items[0].id)):
        score = await desk.store.conn.command("ZSCORE", key, member)
        assert float(text(score)) == after.expires_at_ms
    (event,) = await told(desk, EventName.APPROVAL_EXTENDED)
    assert event.actor == "T0/U0ANA"
    assert event.roles == ("support",)


async def test_people_who_extend_at_once_never_pass_the_bound(desk: Desk) -> None:
    approval = await opened(desk)

    results = await asyncio.gather(
        *(desk.reviews.times.extend(approval.id, who) for who in (ANA, BEN) * 5)
    )

    assert sum(isinstance(result, Change) for result in results) == 2
    after = await desk.approval(approval.items[0].id)
    assert after.expires_at_ms == approval.created_at_ms + 2 * HOUR


async def test_an_edit_at_the_same_time_loses_neither(desk: Desk) -> None:
    click, _ = await desk.refund()
    times = desk.reviews.times

    outcome, *_ = await asyncio.gather(
        desk.reviews.decide(click, Edit(args={"amount": 1}), ANA),
        times.extend(click.approval, BEN),
        times.take(click.approval, BEN),
    )

    assert isinstance(outcome, Settled)
    loaded = await desk.reviews.read(click.approval)
    assert loaded
    assert loaded.approval.items[0].args == {"amount": 1}


async def test_a_decision_after_the_old_deadline_counts_when_there_is_more_time(
    desk: Desk,
) -> None:
    click, _ = await desk.refund()
    await desk.reviews.times.extend(click.approval, ANA)
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.command("ZADD", keys.expiry, 1, click.approval)

    ended = await desk.sweeper.sweep()

    assert ended == 0, "the index was wrong, the record was not"
    assert isinstance(await desk.reviews.decide(click, Approve(), ANA), Settled)


async def test_whoever_is_on_it_is_released_by_the_clock(desk: Desk) -> None:
    approval = await opened(desk)
    await desk.reviews.times.take(approval.id, ANA)
    taken = await desk.approval(approval.items[0].id)
    assert taken.taken is not None
    assert taken.taken.by.user == "U0ANA"
    await due(desk, approval.id, TimerKind.RELEASE)

    await asyncio.gather(*(Sweeper(desk.store).sweep() for _ in range(3)))

    after = await desk.approval(approval.items[0].id)
    assert after.taken is None
    assert after.rev == taken.rev + 1
    assert len(await told(desk, EventName.APPROVAL_RELEASED)) == 1


async def test_an_unknown_or_a_late_approval_gets_no_time(desk: Desk) -> None:
    approval = await opened(desk)
    await desk.overdue(approval.id)

    late = await desk.reviews.times.extend(approval.id, ANA)
    unknown = await desk.reviews.times.take(f"ap_s0_{'0' * 32}", ANA)
    elsewhere = await TimeService(desk.store, tenant="other").take(approval.id, ANA)

    assert not isinstance(late, Change)
    assert late.kind == "expired"
    assert unknown == elsewhere == Unknown()
