"""A corrupt record gives back what its end would have given back."""

from __future__ import annotations

import pytest

from keyturn.gateway.store.store import Store
from tests.lifetimes import listed
from tests.service.harness import ServiceHarness
from tests.service.windowed import refund, refunded, windowed
from tests.stored_records import put_detail


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return windowed(store)


async def corrupt(
    harness: ServiceHarness, approval: str, text: str | bytes = ""
) -> None:
    """Damage a record, as a bad disk would; run the sweep.

    Without a text for its document, the tier of its first call is damaged.
    """
    keys, conn = harness.keys, harness.store.conn
    if text:
        await conn.command("SET", keys.document(approval), text)
    else:
        await put_detail(conn, keys, approval, tier="{")
    await conn.command("ZADD", keys.expiry, 1, keys.listed(approval))
    await harness.sweeper.sweep()


async def test_what_waited_in_it_leaves_its_windows(harness: ServiceHarness) -> None:
    _, (verdict, _) = await harness.submit(refund(900), refund(50, customer="c8"))
    approval = (await harness.approval(verdict.item_id)).id

    await corrupt(harness, approval)

    assert (await refunded(harness), await refunded(harness, "c8")) == (0, 0)
    waiting = harness.keys.waiting("support")
    assert await harness.command("ZCARD", waiting) == 0


@pytest.mark.parametrize("document", ["{", "[]", "{}"])
async def test_what_waited_in_a_record_that_names_nobody_ends_as_well(
    harness: ServiceHarness, document: str
) -> None:
    _, (verdict,) = await harness.submit(refund(900))
    approval = (await harness.approval(verdict.item_id)).id

    await corrupt(harness, approval, document)

    state = await harness.command("HGET", harness.keys.head(approval), "0:s")
    assert state == b"withdrawn"
    assert await refunded(harness) == 0


@pytest.mark.parametrize(
    "uses", ["{", "[]", '[["tk:{default}:ev", "call 1", 1]]', "[[]]"]
)
async def test_uses_that_cannot_be_read_keep_nobody_from_going_on(
    harness: ServiceHarness, uses: str
) -> None:
    _, verdicts = await harness.submit(refund(100), refund(200))
    approval = (await harness.approval(verdicts[0].item_id)).id
    keys = harness.keys
    await harness.command("HSET", keys.head(approval), "0:w", uses)

    await corrupt(harness, approval)

    states = await harness.command("HMGET", keys.head(approval), "0:s", "1:s")
    assert states == [b"withdrawn", b"withdrawn"]
    assert await refunded(harness) == 100
    assert await harness.store.queue(keys).depth() == 1


@pytest.mark.parametrize("of", [b"", b"short", b"\x00" * 32, b"\xff" * 40])
async def test_its_run_is_not_open_for_ever(harness: ServiceHarness, of: bytes) -> None:
    """What names its run and its turn may be the damaged part."""
    _, (verdict,) = await harness.submit(refund(900))
    approval = await harness.approval(verdict.item_id)
    keys, conn = harness.keys, harness.store.conn
    store = harness.store.approvals
    assert await store.has_open(keys, approval.run_ref)
    await conn.command("HSET", keys.head(approval.id), "run", of)

    await corrupt(harness, approval.id)

    assert not await store.has_open(keys, approval.run_ref)
    assert await endless(harness, "turn:*", "run:*", "tm:*") == []


async def endless(harness: ServiceHarness, *kinds: str) -> list[bytes]:
    """Return the keys of these kinds that have no end."""
    conn = harness.store.conn
    found: list[bytes] = []
    for kind in kinds:
        for key in listed(await conn.command("KEYS", f"*:{kind}")):
            assert isinstance(key, bytes)
            left = await conn.command("PTTL", key)
            found += [key] if left == -1 else []
    return found
