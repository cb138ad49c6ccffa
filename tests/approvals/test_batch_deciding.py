"""One decision decides every waiting call of a batch, or none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import NEEDS_OWN_DECISION
from keyturn.gateway.approvals.decisions import (
    Approve,
    Changed,
    Click,
    Decision,
    Edit,
    Expired,
    GestureDecided,
    GestureRefused,
    Refusal,
    Reject,
    Reviewer,
    Stale,
)
from keyturn.gateway.approvals.events import BATCH_MEMBER, EventName
from keyturn.gateway.approvals.gestures import (
    Asked,
    Gesture,
    GestureChange,
    Partition,
    decide_gesture,
    index_ranges,
    indexes_in,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.approvals.builders import (
    ANA,
    HOUR_MS,
    NOW_MS,
    ONE,
    an_approval,
    an_item,
    reviewer,
)

EDIT = Edit(args={"order_id": "55", "amount": 5}, reason="half")
REJECT = Reject(reason="already got a replacement")


def a_batch(count: int, requirement: Requirement = ONE) -> Approval:
    """Return this many refunds, each of another order."""
    return an_approval(
        *(
            an_item(
                index,
                args={"order_id": f"{index}", "amount": index + 1},
                requirement=requirement,
            )
            for index in range(count)
        )
    )


def seen(approval: Approval) -> Click:
    """Return a click on the batch in its current version."""
    return Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.digest,
    )


def say(
    approval: Approval,
    partition: Partition,
    *,
    by: Reviewer | None = None,
    click: Click | None = None,
    now_ms: int = NOW_MS,
    policies: Mapping[int, PolicyDecision] | None = None,
    voters: Mapping[int, Sequence[Reviewer]] | None = None,
) -> GestureChange | GestureRefused | Refusal:
    return decide_gesture(
        {approval.id: approval},
        Gesture.on_card(approval, click or seen(approval), partition),
        by or reviewer(ANA),
        now_ms=now_ms,
        asked=Asked(policies or {}, voters or {}),
    )


def approve_all(approval: Approval) -> dict[int, Decision]:
    return {item.index: Approve() for item in approval.items if item.is_pending}


class Settled(NamedTuple):
    change: Change
    outcome: GestureDecided


def settled(result: GestureChange | GestureRefused | Refusal) -> Settled:
    assert isinstance(result, GestureChange), result
    assert isinstance(result.outcome, GestureDecided)
    assert not result.events
    [change] = result.changes.values()
    return Settled(change, result.outcome)


def test_a_batch_decision_has_one_entry_with_digest_gesture_and_partition() -> None:
    batch = a_batch(56)

    result = settled(say(batch, {**approve_all(batch), 54: EDIT, 55: REJECT}))

    event, *of_calls = result.change.events
    assert event.name is EventName.APPROVAL_DECIDED
    assert (event.item, event.tool, event.actor) == ("", "process_refund", "T0/U0ANA")
    assert event.action_hash == batch.digest
    assert event.reason == f"{EDIT.reason} · {REJECT.reason}"
    assert event.data == {
        "gesture": "api",
        "digest": result.change.approval.digest,
        "approved": "0-53",
        "edited": "54",
        "rejected": "55",
    }
    assert {one.data[BATCH_MEMBER] for one in of_calls} == {batch.digest}
    assert Counter(one.name for one in of_calls) == {
        EventName.ITEM_AUTHORIZED: 55,
        EventName.ITEM_EDITED: 1,
        EventName.ITEM_REJECTED: 1,
    }


def _dropped(batch: Approval) -> Approval:
    return batch.with_(items=batch.items[:-1])


def _inserted(batch: Approval) -> Approval:
    return batch.with_(items=(*batch.items, an_item(len(batch.items))))


def _reordered(batch: Approval) -> Approval:
    first, second, *others = batch.items
    return batch.with_(
        items=(second.with_(index=0), first.with_(index=1), *others),
    )


def _duplicated(batch: Approval) -> Approval:
    twin = batch.items[0].with_(index=1)
    return batch.with_(items=(batch.items[0], twin, *batch.items[2:]))


def _borrowed(batch: Approval) -> Approval:
    other = an_item(1, args={"order_id": "of another batch", "amount": 1})
    return batch.replacing(other.with_(id="ap_other.1"))


def _swapped(batch: Approval) -> Approval:
    first, second = batch.items[:2]
    return batch.replacing(
        first.with_(action=second.action), second.with_(action=first.action)
    )


@pytest.mark.parametrize(
    "manipulate", [_dropped, _inserted, _reordered, _duplicated, _borrowed, _swapped]
)
def test_a_manipulated_batch_is_refused_as_a_whole(
    manipulate: Callable[[Approval], Approval],
) -> None:
    batch = a_batch(4)
    other = manipulate(batch)

    # With the partition of either batch.
    for partition in (approve_all(batch), approve_all(other)):
        refused = say(other, partition, click=seen(batch))

        assert isinstance(refused, Changed)


@pytest.mark.parametrize("partition", [{}, {0: Approve()}, {0: Approve(), 9: REJECT}])
def test_a_partition_of_other_calls_than_those_that_wait_is_refused(
    partition: Partition,
) -> None:
    assert isinstance(say(a_batch(3), partition), Changed)


def test_one_call_that_may_not_be_decided_stops_the_whole_decision() -> None:
    batch = a_batch(3)
    bad = Edit(args={"order_id": "1", "amount": -1})

    refused = say(batch, {**approve_all(batch), 2: bad})

    assert isinstance(refused, GestureRefused)
    assert {n: one.kind for n, one in refused.refusals.items()} == {2: "invalid"}


def _policy(tier: Tier, requirement: Requirement = ONE) -> PolicyDecision:
    return PolicyDecision(tier=tier, requirement=requirement, policy_digest="p")


def test_an_edit_that_changes_nothing_is_no_way_around_a_decision_of_its_own() -> None:
    batch = a_batch(2)
    same = Edit(args=batch.items[1].args)

    refused = say(
        batch,
        {0: Approve(), 1: same},
        policies={1: _policy(Tier.ESCALATE, ONE)},
    )

    assert refused == GestureRefused(refusals={1: NEEDS_OWN_DECISION})


def test_ranges_name_each_index_once() -> None:
    assert index_ranges([]) == ""
    assert index_ranges([55, 0, 1, 2]) == "0-2,55"
    assert index_ranges([4, 6, 7]) == "4,6-7"


@given(st.sets(st.integers(0, 99)))
def test_ranges_are_read_as_they_were_written(indexes: set[int]) -> None:
    assert indexes_in(index_ranges(indexes)) == sorted(indexes)


def test_a_batch_that_has_ended_or_is_late_takes_no_decision() -> None:
    batch = a_batch(2)
    ended = (item.with_(state=ItemState.REJECTED) for item in batch.items)

    over = say(batch.replacing(*ended), approve_all(batch))
    late = say(batch, approve_all(batch), now_ms=NOW_MS + HOUR_MS)

    assert isinstance(over, Stale)
    assert late == Expired(expires_at_ms=batch.expires_at_ms)
