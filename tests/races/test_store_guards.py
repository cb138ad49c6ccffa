"""The scripts hold by themselves, whatever the caller believes it read."""

from __future__ import annotations

import pytest

from gateway.approvals.changes import Change
from gateway.approvals.deciding import decide
from gateway.approvals.decisions import Approve, Reject
from gateway.approvals.events import EventName
from gateway.approvals.lifecycle import UNEXECUTED, ItemState
from gateway.approvals.record import Approval
from gateway.service.facts import item_event
from gateway.store.claims import ClaimEvents
from gateway.store.opening import Admission
from gateway.store.store import Store
from tests.lifetimes import lose_records
from tests.service.desk import ANA, BEN, Desk


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def test_two_changes_of_one_reading_are_written_once(desk: Desk) -> None:
    click, _ = await desk.refund()
    loaded = await desk.reviews.read(click.approval)
    assert loaded
    before, now_ms = loaded.approval, loaded.now_ms
    yes = decide(before, click, Approve(), ANA, now_ms=now_ms)
    no = decide(before, click, Reject(), BEN, now_ms=now_ms)
    assert isinstance(yes, Change)
    assert isinstance(no, Change)

    # Only the vote of the item's other fields moved: rev alone tells them apart.
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.command("HINCRBY", keys.head(before.id), "rev", 1)
    moved = await desk.store.approvals.commit(before, yes, job=None, lapse_ms=1)
    again = await desk.reviews.decide(click, Approve(), ANA)
    late = await desk.store.approvals.commit(before, no, job=None, lapse_ms=1)

    assert (moved, again.kind, late) == ("moved", "settled", "moved")


async def test_a_decision_read_in_time_and_written_late_is_expired(desk: Desk) -> None:
    click, _ = await desk.refund()
    loaded = await desk.reviews.read(click.approval)
    assert loaded
    change = decide(loaded.approval, click, Approve(), ANA, now_ms=loaded.now_ms)
    assert isinstance(change, Change)

    await desk.overdue(click.approval)
    word = await desk.store.approvals.commit(
        loaded.approval, change, job=None, lapse_ms=1
    )

    assert word == "expired"


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.AUTHORIZED}))
async def test_the_claim_script_itself_grants_only_what_is_authorized(
    desk: Desk, state: ItemState
) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.command(
        "HSET", keys.head(click.approval), "0:s", state, "0:u", 2**52
    )
    approval = await desk.approval(claim.item_id)

    answer = await desk.store.claims.claim(
        approval,
        0,
        owner="me",
        judged="start",
        events=events_of(approval),
    )

    # It was written by hand, so no script gave it the lifetime of what has ended.
    await lose_records(desk.store.conn)
    assert answer.word != "new"
    if state in UNEXECUTED | {ItemState.PENDING}:
        assert (answer.word, answer.state) == ("refused", state)


def events_of(approval: Approval) -> ClaimEvents:
    started = item_event(approval, approval.items[0], EventName.ITEM_EXECUTING)
    return ClaimEvents(started=started, doubtful=started)


async def test_the_open_script_itself_answers_a_turn_once(desk: Desk) -> None:
    keys = desk.store.keys_of_tenant("default")
    turn, free = "sha256:" + "1" * 64, Admission("default", (), waiting=1, asked=1)

    first = await desk.store.approvals.open_turn(
        keys, turn, [], verdicts="[1]", events=[], thread=("a", "t"), admission=free
    )
    second = await desk.store.approvals.open_turn(
        keys, turn, [], verdicts="[2]", events=[], thread=("a", "t"), admission=free
    )

    assert first
    assert second
    assert first.verdicts == second.verdicts == "[1]"
