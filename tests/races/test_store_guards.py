"""The scripts hold by themselves, whatever the caller believes it read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lifetimes import lose_records
from tests.service.desk import ANA, BEN, Desk
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.deciding import decide
from twokey.gateway.approvals.decisions import Approve, Reject
from twokey.gateway.approvals.ending import overdue
from twokey.gateway.approvals.lifecycle import UNEXECUTED
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Claimed, Refused
from twokey.gateway.store.changing import Write, write
from twokey.gateway.store.opening import Admission
from twokey.gateway.store.store import Store


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
    moved = await write(desk.store.conn, loaded, Write(yes))
    again = await desk.reviews.decide(click, Approve(), ANA)
    late = await write(desk.store.conn, loaded, Write(no))

    assert (moved, again.kind, late) == (False, "settled", False)


async def test_a_decision_read_in_time_is_not_written_late(desk: Desk) -> None:
    click, _ = await desk.refund()
    loaded = await desk.reviews.read(click.approval)
    assert loaded
    change = decide(loaded.approval, click, Approve(), ANA, now_ms=loaded.now_ms)
    assert isinstance(change, Change)

    late = Write(replace(change, before_ms=loaded.now_ms))
    is_written = await write(desk.store.conn, loaded, late)

    assert not is_written
    assert (await desk.approval(f"{click.approval}.0")).items[0].is_pending


async def test_a_change_of_an_old_reading_is_computed_again(desk: Desk) -> None:
    click, _ = await desk.refund()
    loaded = await desk.reviews.read(click.approval)
    assert loaded
    change = decide(loaded.approval, click, Approve(), ANA, now_ms=loaded.now_ms)
    assert isinstance(change, Change)

    minute_ms = 60_000
    for aside_ms in (-minute_ms, minute_ms):
        old = replace(loaded, now_ms=loaded.now_ms + aside_ms)
        assert not await write(desk.store.conn, old, Write(change))


async def test_a_heartbeat_keeps_a_claim_from_being_doubted(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    started = await desk.agents.claim(claim)
    assert isinstance(started, Claimed)
    await desk.owner_dies(claim.item_id)
    loaded = await desk.reviews.read(click.approval)
    assert loaded
    change = overdue(loaded.approval, loaded.now_ms)
    assert change

    assert await desk.agents.heartbeat(claim.item_id, started.fence)
    is_written = await write(desk.store.conn, loaded, Write(change))

    assert not is_written
    assert (await desk.item(claim.item_id)).state is ItemState.EXECUTING


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.AUTHORIZED}))
async def test_a_claim_is_granted_only_of_what_is_authorized(
    desk: Desk, state: ItemState
) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.command(
        "HSET", keys.head(click.approval), "0:s", state, "0:u", 2**52
    )
    answer = await desk.agents.claim(claim)

    # It was written by hand, so no script gave it the lifetime of what has ended.
    await lose_records(desk.store.conn)
    assert not isinstance(answer, Claimed)
    if state in UNEXECUTED | {ItemState.PENDING}:
        assert isinstance(answer, Refused)
        assert answer.state is state


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
