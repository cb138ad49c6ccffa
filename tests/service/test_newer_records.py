"""A record of a newer version is left alone, so that going back loses nothing."""

from __future__ import annotations

import json

import pytest

from tests.service.harness import ANA, ServiceHarness
from tests.stored_records import pinned
from tests.streams import announced
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.timing import TimerKind
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Claimed
from twokey.gateway.service import sweep
from twokey.gateway.store import codec
from twokey.gateway.store.connection import text
from twokey.gateway.store.store import Store

NEXT = codec.FORMAT + 1


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def written_by_newer(harness: ServiceHarness, approval: str) -> None:
    """Write a record as the next version would: a new field, and its number."""
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    body = await pinned(conn, keys, approval)
    fresh = json.dumps({**body, "brought_by_the_next_version": 1})
    await conn.transaction(
        ["SET", keys.pinned(approval), fresh],
        ["HSET", keys.head(approval), "format", str(NEXT)],
    )


async def newer_runs_again(
    harness: ServiceHarness, approval: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a version run that knows the field; it is this one with the number."""
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    body = await pinned(conn, keys, approval)
    del body["brought_by_the_next_version"]
    await conn.command("SET", keys.pinned(approval), json.dumps(body))
    monkeypatch.setattr(codec, "FORMAT", NEXT)


async def state_of(harness: ServiceHarness, approval: str) -> str:
    head = harness.store.keys_of_tenant("default").head(approval)
    return text(await harness.store.conn.command("HGET", head, "0:s"))


async def test_every_record_says_its_format(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    head = keys.head(click.approval)

    assert text(await conn.command("HGET", head, "format")) == str(codec.FORMAT)
    await conn.command("HDEL", head, "format")
    await harness.reviews.decide(click, Approve(), ANA)
    assert text(await conn.command("HGET", head, "format")) == str(codec.FORMAT)


async def test_a_newer_record_waits_whatever_is_tried_and_is_decided_later(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    click, claim = await harness.refund()
    approval = click.approval
    keys = harness.store.keys_of_tenant("default")
    await written_by_newer(harness, approval)

    with pytest.raises(NewerRecord, match=f"format {NEXT}; this version reads"):
        await harness.reviews.decide(click, Approve(), ANA)
    with pytest.raises(NewerRecord):
        await harness.agents.claim(claim)
    await harness.store.conn.command("ZADD", keys.timers, 1, f"{approval} remind")
    await harness.store.conn.command("ZADD", keys.expiry, 1, keys.listed(approval))
    assert await harness.sweeper.sweep() == 0

    assert await state_of(harness, approval) == "pending"
    names = {one.name for one in await announced(harness.store.conn, keys)}
    assert EventName.RECORD_QUARANTINED not in names
    assert (
        await harness.store.conn.command("ZSCORE", keys.expiry, keys.listed(approval))
        is not None
    )
    await newer_runs_again(harness, approval, monkeypatch)
    outcome = await harness.reviews.decide(click, Approve(), ANA)
    assert outcome.kind == "decided"
    assert isinstance(await harness.agents.claim(claim), Claimed)


async def test_an_authorized_call_of_a_newer_record_is_not_refused(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)
    await written_by_newer(harness, click.approval)

    with pytest.raises(NewerRecord):
        await harness.agents.claim(claim)
    with pytest.raises(NewerRecord):
        await harness.agents.outcomes(claim.ref)

    await newer_runs_again(harness, click.approval, monkeypatch)
    assert isinstance(await harness.agents.claim(claim), Claimed)


async def test_newer_records_keep_no_other_waiting(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_BATCH", 2)
    newer = [(await harness.refund(thread=f"t{n}"))[0].approval for n in range(5)]
    keys = harness.store.keys_of_tenant("default")
    for approval in newer:
        await written_by_newer(harness, approval)
        timer = f"{approval} {TimerKind.REMIND}"
        await harness.store.conn.command("ZADD", keys.timers, 1, timer)
        await harness.store.conn.command("ZADD", keys.expiry, 1, keys.listed(approval))
    click, claim = await harness.refund(thread="other")
    await harness.overdue(click.approval)
    await harness.store.conn.command(
        "ZADD", keys.expiry, 2, keys.listed(click.approval)
    )
    timer = f"{click.approval} {TimerKind.REMIND}"
    await harness.store.conn.command("ZADD", keys.timers, 2, timer)

    assert await harness.sweeper.sweep() == 1

    assert (await harness.item(claim.item_id)).state is ItemState.EXPIRED
    assert await harness.store.conn.command("ZSCORE", keys.timers, timer) is None
    assert {await state_of(harness, one) for one in newer} == {"pending"}


async def test_another_field_under_the_same_number_is_still_corrupt(
    harness: ServiceHarness,
) -> None:
    click, _ = await harness.refund()
    await written_by_newer(harness, click.approval)
    head = harness.store.keys_of_tenant("default").head(click.approval)
    await harness.store.conn.command("HSET", head, "format", "1")

    with pytest.raises(CorruptRecord):
        await harness.reviews.decide(click, Approve(), ANA)
