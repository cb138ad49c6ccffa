"""The scripts protect themselves, independent of the caller's reading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.ending import end_overdue
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, Refused
from keyturn.gateway.store.records.atomic_write import Loaded, Write, WriteMany, write
from tests.lifetimes import lose_records
from tests.service.harness import ANA, BEN, ServiceHarness


async def written(harness: ServiceHarness, loaded: Loaded, what: Write) -> bool:
    seen = {loaded.approval.id: loaded}
    return bool(await write(harness.store.conn, harness.keys, seen, WriteMany([what])))


async def test_two_changes_of_one_reading_are_written_once(
    harness: ServiceHarness,
) -> None:
    click, _ = await harness.refund()
    loaded = await harness.reviews.read(click.approval)
    assert loaded
    before, now_ms = loaded.approval, loaded.now_ms
    yes = decide(before, click, Approve(), ANA, now_ms=now_ms)
    no = decide(before, click, Reject(), BEN, now_ms=now_ms)
    assert isinstance(yes, Change)
    assert isinstance(no, Change)

    # Only the vote of the item's other fields changed: rev alone distinguishes them.
    await harness.command("HINCRBY", harness.keys.head(before.id), "rev", 1)
    moved = await written(harness, loaded, Write(yes))
    again = await harness.reviews.decide(click, Approve(), ANA)
    late = await written(harness, loaded, Write(no))

    assert (moved, again.kind, late) == (False, "decided", False)


async def test_a_heartbeat_keeps_a_claim_from_being_doubted(
    harness: ServiceHarness,
) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    started = await harness.granted(claim)
    await harness.owner_dies(claim.item_id)
    loaded = await harness.reviews.read(click.approval)
    assert loaded
    change = end_overdue(loaded.approval, loaded.now_ms)
    assert change

    assert await harness.agents.heartbeat(claim.item_id, started.fence)
    is_written = await written(harness, loaded, Write(change))

    assert not is_written
    assert (await harness.item(claim.item_id)).state is ItemState.EXECUTING


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.AUTHORIZED}))
async def test_a_claim_is_granted_only_of_what_is_authorized(
    harness: ServiceHarness, state: ItemState
) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    await harness.command(
        "HSET", harness.keys.head(click.approval), "0:s", state, "0:u", 2**52
    )
    answer = await harness.agents.claim(claim)

    # It was written by hand, so no script gave it the lifetime of ended records.
    await lose_records(harness.store.conn)
    assert not isinstance(answer, Claimed)
    if state in UNEXECUTED | {ItemState.PENDING}:
        assert isinstance(answer, Refused)
        assert answer.state is state


async def test_a_turn_that_two_processes_submit_at_once_is_opened_once(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, both = harness.store.agent_load.load, asyncio.Barrier(2)

    async def at_once(*args: Any, **named: Any) -> Any:
        found = await load(*args, **named)
        # Neither has seen what the other one opens.
        if not found.verdicts:
            await both.wait()
        return found

    monkeypatch.setattr(harness.store.agent_load, "load", at_once)
    call: tuple[str, JsonObject] = ("process_refund", {"amount": 5.0})
    async with asyncio.timeout(60):
        (_, first), (_, second) = await asyncio.gather(
            harness.submit(call, message_id="m"), harness.submit(call, message_id="m")
        )

    assert first == second
    assert len([loaded async for loaded in harness.reviews.queue.waiting()]) == 1
