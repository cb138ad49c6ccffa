"""What a version opened that kept less beside an approval is still cared for."""

from __future__ import annotations

import pytest

from tests.service.desk import ANA, Desk
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.protocol.records import Home
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.connection import text
from twokey.gateway.store.store import Store

HOUR_MS = 3_600_000


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def as_before(desk: Desk, item: str) -> None:
    """Leave of an approval what a version without open runs and formats wrote."""
    keys, conn = desk.store.keys_of_tenant("default"), desk.store.conn
    approval = approval_of(item)[0]
    home = Home(agent="support", thread="t1")
    of = text(await conn.command("HGET", keys.blobs(approval), "of"))
    await conn.command("HDEL", keys.blobs(approval), "of", "format")
    await conn.command("DEL", keys.open_of_run("default", home))
    turn, run = keys.turn(of.split(" ")[1]), keys.run("default", home)
    for key in (keys.head(approval), keys.blobs(approval), turn, run):
        await conn.command("PEXPIRE", key, HOUR_MS)


async def test_a_new_turn_ends_what_a_version_before_left_waiting(desk: Desk) -> None:
    _, [before] = await desk.submit(("process_refund", {"amount": 1.0}))
    await as_before(desk, before.item_id)

    _, [now] = await desk.submit(("process_refund", {"amount": 2.0}))

    assert (await desk.item(before.item_id)).state is ItemState.SUPERSEDED
    assert (await desk.item(now.item_id)).is_pending


async def test_what_a_version_before_opened_is_decided(desk: Desk) -> None:
    _, [before] = await desk.submit(("process_refund", {"amount": 1.0}))
    await as_before(desk, before.item_id)

    await desk.reviews.decide(await desk.click(before), Approve(), ANA)

    assert (await desk.item(before.item_id)).state is ItemState.AUTHORIZED
