"""The calls of a card keep their own deadlines, independent of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Expired,
    Reject,
)
from keyturn.gateway.approvals.ending import end_overdue
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.revoking import revoke
from keyturn.gateway.approvals.timing import LONGEST, end_of, ends, is_extendable
from keyturn.gateway.approvals.waiting_changes import acknowledge, extend
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    HOUR_MS,
    NOW_MS,
    ONE_SENIOR,
    an_approval,
    an_item,
    click_on,
    evaluation,
    reviewer,
    say,
)
from tests.levels import examples

CALLS = 4
MINUTE_MS = 60_000
SHORT_MS = 10 * MINUTE_MS
ESCALATED = evaluation(Tier.ESCALATE, ONE_SENIOR, ttl_ms=SHORT_MS)


def a_card() -> Approval:
    return an_approval(*(an_item(index) for index in range(CALLS)))


def decided(
    approval: Approval,
    index: int,
    decision: Decision,
    now_ms: int,
    policy_now: PolicyDecision | None = None,
) -> Approval:
    """Return what a decision on one call makes of a card; itself, where refused."""
    click = click_on(approval, index)
    found = say(approval, decision, click=click, now_ms=now_ms, policy_now=policy_now)
    return found.approval if isinstance(found, Change) else approval


def edited(approval: Approval, index: int, now_ms: int) -> Approval:
    """Edit one call so that its tier allows it less time."""
    edit = Edit(args={"order_id": f"{now_ms}", "amount": 5})
    return decided(approval, index, edit, now_ms, ESCALATED)


def approved(approval: Approval, index: int, now_ms: int) -> Approval:
    return decided(approval, index, Approve(), now_ms)


def rejected(approval: Approval, index: int, now_ms: int) -> Approval:
    return decided(approval, index, Reject(reason="no"), now_ms)


def asked_anew(approval: Approval, index: int, now_ms: int) -> Approval:
    """At its claim, a stricter policy sends one authorized call back to people."""
    item = approval.items[index]
    if item.state is not ItemState.AUTHORIZED:
        return approval
    change = revoke(approval, item, ESCALATED, now_ms=now_ms)
    return change.approval if change else approval


def swept(approval: Approval, now_ms: int) -> Approval:
    change = end_overdue(approval, now_ms)
    return change.approval if change else approval


@dataclass(frozen=True)
class Step:
    """What happens to one call of a card, so long after what happened before."""

    move: Callable[[Approval, int, int], Approval]
    index: int
    after_ms: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([edited, approved, rejected, asked_anew]),
        st.integers(0, CALLS - 1),
        st.integers(0, 20 * MINUTE_MS),
    ),
    max_size=12,
)


def waiting(approval: Approval) -> dict[int, int]:
    """Return when each call ends that waits."""
    return {
        item.index: end_of(approval, item) for item in approval.items if item.is_pending
    }


@given(steps)
@settings(max_examples=examples(100))
def test_no_call_changes_the_deadline_of_another(taken: list[Step]) -> None:
    approval, now_ms = a_card(), NOW_MS
    for step in taken:
        now_ms += step.after_ms
        before = waiting(approval)
        approval = swept(approval, now_ms)
        assert waiting(approval) == {i: at for i, at in before.items() if at > now_ms}

        before = waiting(approval)
        approval = step.move(approval, step.index, now_ms)

        after = waiting(approval)
        others = before.keys() - {step.index}
        assert {i: after[i] for i in others} == {i: before[i] for i in others}
        # Cards, lists and reminders show when the first call of a card ends.
        if after:
            assert approval.expires_at_ms == min(after.values())


HOUR_EACH = dict.fromkeys(range(CALLS), NOW_MS + HOUR_MS)


def test_an_edit_that_raises_one_call_leaves_the_others_their_hour() -> None:
    approval = edited(a_card(), 1, NOW_MS)
    assert waiting(approval) == {**HOUR_EACH, 1: NOW_MS + SHORT_MS}
    found = [[i.index for i in items] for items in ends(approval).values()]
    assert found == [[1], [0, 2, 3]]
    # It is told later that it expired with its own deadline.
    late = swept(approval, NOW_MS + SHORT_MS)
    click, now_ms = click_on(late, 1), NOW_MS + SHORT_MS + 1
    told = say(late, Approve(), BEN, click=click, now_ms=now_ms)
    assert told == Expired(expires_at_ms=NOW_MS + SHORT_MS)


@given(steps, st.integers(1, 6))
@settings(max_examples=examples(50))
def test_more_time_stops_at_each_calls_bound(taken: list[Step], times: int) -> None:
    approval, now_ms = a_card(), NOW_MS
    for step in taken:
        now_ms += step.after_ms
        approval = step.move(swept(approval, now_ms), step.index, now_ms)
    approval = swept(approval, now_ms)

    for _ in range(times):
        before = waiting(approval)
        change = extend(approval, reviewer(ANA), now_ms=now_ms)
        if not isinstance(change, Change):
            break
        after = waiting(change.approval)
        added = {after[index] - before[index] for index in before}
        assert all(0 <= more <= approval.ttl_ms // 2 for more in added)
        assert any(added)
        approval = change.approval

    for item in approval.items:
        if item.is_pending:
            longest = item.latest_at_ms or NOW_MS + LONGEST * HOUR_MS
            assert end_of(approval, item) <= longest


def test_more_time_goes_to_what_can_get_more() -> None:
    approval = edited(a_card(), 1, NOW_MS)
    while isinstance(change := extend(approval, reviewer(ANA), NOW_MS), Change):
        approval = change.approval

    longest = dict.fromkeys(range(CALLS), NOW_MS + LONGEST * HOUR_MS)
    assert waiting(approval) == {**longest, 1: NOW_MS + LONGEST * SHORT_MS}
    assert not is_extendable(approval, now_ms=NOW_MS)


def test_somebody_can_be_on_it_while_an_expired_call_is_not_swept() -> None:
    approval = edited(a_card(), 1, NOW_MS)

    change = acknowledge(approval, reviewer(ANA), NOW_MS + SHORT_MS)

    assert isinstance(change, Change)
    # Written before the next end, and not before one that is past.
    assert change.before_ms == NOW_MS + HOUR_MS
