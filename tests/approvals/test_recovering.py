"""After a loss or a restored copy, no call runs by an incomplete record."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.ending import (
    RESTORED,
    THREAD_LOST,
    doubt_restored,
    end_with_thread,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.protocol.records import ItemState
from tests.approvals.builders import ANA, HOUR_MS, NOW_MS, an_approval, an_item

UNTOUCHED = sorted(set(ItemState) - {ItemState.PENDING, ItemState.AUTHORIZED})
LATE_MS = NOW_MS + HOUR_MS


def of_state(state: ItemState, **more: object) -> Approval:
    return an_approval(an_item().with_(state=state, **more))


def only(approval: Approval) -> Item:
    (item,) = approval.items
    return item


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ItemState.PENDING, ItemState.WITHDRAWN),
        (ItemState.AUTHORIZED, ItemState.LAPSED),
    ],
)
def test_a_call_that_did_not_begin_ends_with_its_thread(
    before: ItemState, after: ItemState
) -> None:
    approval = of_state(before)

    change = end_with_thread(approval, only(approval), NOW_MS)

    assert change is not None
    item = only(change.approval)
    assert (item.state, item.changed_at_ms) == (after, NOW_MS)
    assert item.revoked is not None
    assert (item.revoked.reason, item.revoked.is_final) == (THREAD_LOST, True)
    assert change.approval.rev == approval.rev + 1


@pytest.mark.parametrize("state", UNTOUCHED)
def test_a_call_that_began_or_ended_is_left_alone(state: ItemState) -> None:
    approval = of_state(state)

    assert end_with_thread(approval, only(approval), NOW_MS) is None
    assert doubt_restored(approval, only(approval), NOW_MS) is None


def test_an_authorization_of_an_older_copy_runs_nothing_and_is_for_people() -> None:
    approval = of_state(ItemState.AUTHORIZED)

    change = doubt_restored(approval, only(approval), NOW_MS)

    assert change is not None
    item = only(change.approval)
    assert (item.state, item.is_restored) == (ItemState.IN_DOUBT, True)
    assert item.revoked is not None
    assert (item.revoked.reason, item.revoked.is_final) == (RESTORED, False)


def test_a_waiting_call_of_an_older_copy_is_asked_anew_once() -> None:
    vote = Vote(by=ANA, roles=("support",), action_hash="h", at_ms=1)
    approval = of_state(ItemState.PENDING, votes=(vote,))

    change = doubt_restored(approval, only(approval), NOW_MS)

    assert change is not None
    assert change.approval.version == approval.version + 1
    item = only(change.approval)
    assert (item.state, item.votes, item.is_restored) == (ItemState.PENDING, (), True)
    assert doubt_restored(change.approval, item, NOW_MS) is None


def test_an_overdue_call_of_an_older_copy_expires_and_says_that_it_may_have_run() -> (
    None
):
    approval = of_state(ItemState.PENDING)

    change = doubt_restored(approval, only(approval), LATE_MS)

    assert change is not None
    item = only(change.approval)
    assert (item.state, item.is_restored) == (ItemState.EXPIRED, True)
