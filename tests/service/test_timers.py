"""An approval that waits reminds people once, and calls others once."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Approve, Decided, Edit
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.gateway.store.store import Store
from tests.lifetimes import listed, lose_records
from tests.service.harness import ANA, BEN, POLICY, ServiceHarness, person

WAITING = """tiers:
  approve: {remind_at: 50%, escalate_at: 80%, escalate_to: senior}
  escalate: {needs: with_senior,
             remind_at: 25%, escalate_at: 75%, escalate_to: "#leads"}
"""
PATIENT = POLICY.replace(POLICY[POLICY.index("tiers:") : POLICY.index("protect:")], "")
HOUR = 3_600_000


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(PATIENT + WAITING, "policy.yml"))


async def due(harness: ServiceHarness, approval: str, *kinds: TimerKind) -> None:
    """Move the clock: timers of an approval are due."""
    for kind in kinds:
        name = str(Timer(approval=approval, kind=kind))
        await harness.command("ZADD", harness.keys.timers, "XX", 1, name)


async def timers(harness: ServiceHarness) -> list[str]:
    reply = await harness.command("ZRANGE", harness.keys.timers, 0, -1)
    return sorted(text(one) for one in listed(reply))


async def opened(harness: ServiceHarness, tool: str = "process_refund") -> Approval:
    # A separate thread: a newer turn would supersede this one.
    thread = secrets.token_hex(4)
    _, (verdict,) = await harness.submit((tool, {"n": 1}), thread=thread)
    return await harness.approval(verdict.item_id)


async def test_shares_of_the_time_become_timers(harness: ServiceHarness) -> None:
    approval = await opened(harness)

    waiting = approval.waiting
    assert (waiting.remind_at_ms, waiting.escalate_at_ms) == (HOUR // 2, HOUR * 4 // 5)
    assert waiting.escalate_to == ("senior",)
    name = f"{approval.id} remind"
    score = await harness.command("ZSCORE", harness.keys.timers, name)
    assert float(text(score)) == approval.created_at_ms + HOUR // 2


@pytest.mark.parametrize(
    "limit", ["protect:\n  flood_per_10m: 1", "attention: {per_person: 1}\nprotect:"]
)
async def test_a_silent_call_has_a_reminder(store: Store, limit: str) -> None:
    limited = PATIENT.replace("protect:\n", f"{limit}\n")
    harness = ServiceHarness(store, load_policy(limited, "policy.yml"))
    _, second = await opened(harness), await opened(harness)

    assert second.waiting.remind_at_ms == HOUR // 2
    assert f"{second.id} remind" in await timers(harness)


async def test_replicas_remind_and_call_once(harness: ServiceHarness) -> None:
    approvals = [
        await opened(harness, tool) for tool in ("process_refund", "wire_money")
    ]
    for approval in approvals:
        await due(harness, approval.id, TimerKind.REMIND, TimerKind.ESCALATE)

    await asyncio.gather(*(Sweeper(harness.store).sweep() for _ in range(8)))

    for name in (EventName.APPROVAL_REMINDED, EventName.APPROVAL_ESCALATED):
        events = await harness.audited(name)
        assert sorted(one.approval for one in events) == sorted(a.id for a in approvals)
    assert await timers(harness) == []


async def test_somebody_who_is_called_later_may_decide(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    await due(harness, click.approval, TimerKind.ESCALATE)
    await harness.sweeper.sweep()

    outcome = await harness.reviews.decide(click, Approve(), person("U0CHLOE"))

    assert isinstance(outcome, Decided)


async def test_an_ended_call_leaves_no_timer(harness: ServiceHarness) -> None:
    approval = await opened(harness)
    await due(harness, approval.id, TimerKind.REMIND, TimerKind.ESCALATE)
    await harness.overdue(approval.id)
    await lose_records(harness.store.conn)

    await harness.sweeper.sweep()

    assert await timers(harness) == []
    assert await harness.command("ZCARD", harness.keys.expiry) == 0


async def test_more_time_moves_all_deadlines(harness: ServiceHarness) -> None:
    before = await opened(harness)
    keys = harness.keys

    result = await harness.reviews.change_own(before.id, waiting_changes.extend, ANA)

    assert isinstance(result, Change)
    after = await harness.approval(before.items[0].id)
    assert after == result.approval
    assert after.expires_at_ms == before.expires_at_ms + HOUR // 2
    waits = keys.waiting("support")
    listed = keys.listed(before.id)
    for key, member in ((keys.expiry, listed), (waits, listed + b"0")):
        score = await harness.command("ZSCORE", key, member)
        assert float(text(score)) == after.expires_at_ms
    (event,) = await harness.audited(EventName.APPROVAL_EXTENDED)
    assert event.actor == "T0/U0ANA"
    assert event.roles == ("support",)


async def test_extending_at_once_stays_in_the_bound(harness: ServiceHarness) -> None:
    approval = await opened(harness)

    results = await asyncio.gather(
        *(
            harness.reviews.change_own(approval.id, waiting_changes.extend, who)
            for who in (ANA, BEN) * 5
        )
    )

    assert sum(isinstance(result, Change) for result in results) == 2
    after = await harness.approval(approval.items[0].id)
    assert after.expires_at_ms == approval.created_at_ms + 2 * HOUR


async def test_an_edit_at_the_same_time_loses_neither(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    times = harness.reviews

    outcome, *_ = await asyncio.gather(
        harness.reviews.decide(click, Edit(args={"amount": 1}), ANA),
        times.change_own(click.approval, waiting_changes.extend, BEN),
        times.change_own(click.approval, waiting_changes.acknowledge, BEN),
    )

    assert isinstance(outcome, Decided)
    loaded = await harness.reviews.read(click.approval)
    assert loaded
    assert loaded.approval.items[0].args == {"amount": 1}


async def test_a_decision_in_the_added_time_counts(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    await harness.reviews.change_own(click.approval, waiting_changes.extend, ANA)
    await harness.command(
        "ZADD", harness.keys.expiry, 1, harness.keys.listed(click.approval)
    )

    ended = await harness.sweeper.sweep()

    assert ended == 0, "the index was wrong, the record was not"
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)
