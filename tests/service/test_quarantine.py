"""A corrupt record gives back what its end would have given back."""

from __future__ import annotations

import pytest

from tests.service.desk import Desk
from tests.service.windowed import refund, refunded, windowed
from twokey.gateway.store.store import Store


@pytest.fixture
def desk(store: Store) -> Desk:
    return windowed(store)


async def corrupt(desk: Desk, approval: str, field: str, text: str) -> None:
    """Damage a record, as a bad disk or a newer version would; let the clock look."""
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.together(
        ["HSET", keys.blobs(approval), field, text],
        ["ZADD", keys.expiry, 1, approval],
    )
    await desk.sweeper.sweep()


async def test_what_waited_in_it_leaves_its_windows(desk: Desk) -> None:
    _, (verdict, _) = await desk.submit(refund(900), refund(50, customer="c8"))
    approval = (await desk.approval(verdict.item_id)).id
    keys = desk.store.keys_of_tenant("default")

    await corrupt(desk, approval, "0:d", "{")

    assert (await refunded(desk), await refunded(desk, "c8")) == (0, 0)
    waiting = keys.waiting("default", "support")
    assert await desk.store.conn.command("ZCARD", waiting) == 0


@pytest.mark.parametrize("uses", ["{", "[]", '[["tk:{s0}:ev", "call 1", 1]]', "[[]]"])
async def test_uses_that_cannot_be_read_keep_nobody_from_going_on(
    desk: Desk, uses: str
) -> None:
    _, verdicts = await desk.submit(refund(100), refund(200))
    approval = (await desk.approval(verdicts[0].item_id)).id
    keys = desk.store.keys_of_tenant("default")
    await desk.store.conn.command("HSET", keys.blobs(approval), "0:w", uses)

    await corrupt(desk, approval, "0:d", "{")

    states = await desk.store.conn.command("HMGET", keys.head(approval), "0:s", "1:s")
    assert states == [b"withdrawn", b"withdrawn"]
    assert await refunded(desk) == 100
    assert await desk.store.queue(keys).depth() == 1
