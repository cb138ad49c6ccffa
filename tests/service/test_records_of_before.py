"""What a version opened that kept less beside an approval is still cared for."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.connection import text
from twokey.gateway.store.store import Store

HOUR_MS = 3_600_000


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def as_before(harness: ServiceHarness, item: str) -> None:
    """Leave of an approval what a version without open runs and formats wrote."""
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    approval = approval_of(item)[0]
    run_ref = RunRef(agent="support", thread="t1")
    of = text(await conn.command("HGET", keys.blobs(approval), "of"))
    await conn.command("HDEL", keys.blobs(approval), "of", "format")
    await conn.command("DEL", keys.open_of_run("default", run_ref))
    turn, run = keys.turn(of.split(" ")[1]), keys.run("default", run_ref)
    for key in (keys.head(approval), keys.blobs(approval), turn, run):
        await conn.command("PEXPIRE", key, HOUR_MS)


async def test_a_new_turn_ends_what_a_version_before_left_waiting(
    harness: ServiceHarness,
) -> None:
    _, [before] = await harness.submit(("process_refund", {"amount": 1.0}))
    await as_before(harness, before.item_id)

    _, [now] = await harness.submit(("process_refund", {"amount": 2.0}))

    assert (await harness.item(before.item_id)).state is ItemState.SUPERSEDED
    assert (await harness.item(now.item_id)).is_pending


async def test_what_a_version_before_opened_is_decided(harness: ServiceHarness) -> None:
    _, [before] = await harness.submit(("process_refund", {"amount": 1.0}))
    await as_before(harness, before.item_id)

    await harness.reviews.decide(await harness.click(before), Approve(), ANA)

    assert (await harness.item(before.item_id)).state is ItemState.AUTHORIZED
