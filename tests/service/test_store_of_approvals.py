"""The store reads and writes approvals by id, and reports unknown ones."""

from __future__ import annotations

import logging

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.waiting_changes import acknowledge
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from tests.service.harness import ANA, ServiceHarness

RUN = RunRef(agent="support", thread="t1")
NO_ID = "ap_of_somebody_else"


async def taken(loaded: Loaded) -> Write:
    change = acknowledge(loaded.approval, ANA, now_ms=loaded.now_ms)
    assert isinstance(change, Change)
    return Write(change)


async def test_a_text_that_is_no_id_names_no_approval(harness: ServiceHarness) -> None:
    store = harness.store.approvals

    assert await store.load(NO_ID) is None
    assert await store.change(NO_ID, taken) is None
    assert not await store.heartbeat(NO_ID, 0, 1)


async def test_what_moves_all_the_time_is_not_written(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    keys, conn = harness.keys, harness.store.conn
    looked: list[int] = []

    async def too_late(loaded: Loaded) -> Write:
        looked.append(loaded.approval.rev)
        await conn.command("HINCRBY", keys.head(click.approval), "rev", 1)
        return await taken(loaded)

    with pytest.raises(StoreUnavailable):
        await harness.store.approvals.change(click.approval, too_late)

    after = await harness.store.approvals.load(click.approval)
    assert after is not None
    assert after.approval.acknowledged is None
    assert looked == list(range(1, after.approval.rev))


async def test_a_list_leaves_out_what_cannot_be_read_and_says_so(
    harness: ServiceHarness, caplog: pytest.LogCaptureFixture
) -> None:
    clicks = [(await harness.refund(thread=f"t{index}"))[0] for index in range(2)]
    good, corrupt = [click.approval for click in clicks]
    pinned = harness.keys.document(corrupt)
    await harness.command("SET", pinned, "{")

    with caplog.at_level(logging.WARNING):
        found = await harness.store.approvals.load_each([corrupt, NO_ID, good])

    assert [loaded.approval.id for loaded in found] == [good]
    assert "record.corrupt" in caplog.text


async def test_what_has_ended_in_a_run_is_listed_apart_and_in_its_place(
    harness: ServiceHarness,
) -> None:
    # Each one supersedes the one before.
    opened = [(await harness.refund(amount=one))[0].approval for one in (1, 2, 3)]
    keys, store = harness.keys, harness.store.approvals

    still_open = await store.open_of_run(keys, RUN)
    ended = await harness.command("ZCARD", keys.run(RUN))
    every = await store.of_run(keys, RUN)

    assert [one.id for one in still_open] == opened[2:]
    assert ended == len(opened[:2])
    assert [one.id for one in every] == opened


async def test_a_run_has_something_open_until_its_last_call_has_ended(
    harness: ServiceHarness,
) -> None:
    keys, store = harness.keys, harness.store.approvals
    click, _ = await harness.refund()
    before = await store.has_open(keys, RUN)

    await harness.reviews.decide(click, Reject(), ANA)

    assert before
    assert not await store.has_open(keys, RUN)
