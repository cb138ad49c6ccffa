"""What somebody else wrote into an outbox keeps nobody from what comes behind it."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.store.store import Store

JUNK = [
    b'{"name":"item.rejected","approval":"\xff"}',
    b'{"name":"approval.opened","approval":"\xff"}',
    b"\x1e",
    b"\x1eAAAA",
    b"[]",
]


@pytest.mark.parametrize("junk", JUNK)
async def test_changes_are_read_past_junk(store: Store, junk: bytes) -> None:
    harness, keys = ServiceHarness(store), store.keys_of_tenant("default")
    outbox = store.outbox(keys, reader="x")
    await store.conn.command("XADD", keys.outbox, "*", "e", junk, "at", "9" * 5000)
    await store.conn.command("XADD", keys.outbox, "*", "e", junk)
    click, _ = await harness.refund()
    await harness.reviews.decide(click, Approve(), ANA)

    found = await outbox.changes("0-0", block_ms=1)

    assert click.approval in found.moved
    assert [one.approval for one in found.opened] == [click.approval]


async def test_a_click_is_seen_once_and_nothing_is_taken(store: Store) -> None:
    harness, keys = ServiceHarness(store), store.keys_of_tenant("default")
    outbox = store.outbox(keys, reader="x")
    await outbox.prepare()
    click, _ = await harness.refund()
    assert not await outbox.has_new_click()

    signed = click.with_(request_digest="sha256:" + "7" * 64)
    await harness.reviews.decide(signed, Approve(), ANA)

    assert await outbox.has_new_click()
    assert not await outbox.has_new_click()
    taken = await outbox.take("one", block_ms=1)
    assert taken[-1].request_digest == signed.request_digest


async def test_a_click_that_was_taken_is_not_new(store: Store) -> None:
    harness, keys = ServiceHarness(store), store.keys_of_tenant("default")
    outbox = store.outbox(keys, reader="x")
    await outbox.prepare()
    click, _ = await harness.refund()
    signed = click.with_(request_digest="sha256:" + "7" * 64)
    await harness.reviews.decide(signed, Approve(), ANA)
    await outbox.take("one", block_ms=1)

    assert not await outbox.has_new_click()


@pytest.mark.parametrize("junk", JUNK)
async def test_junk_is_no_click_and_hides_none(store: Store, junk: bytes) -> None:
    harness, keys = ServiceHarness(store), store.keys_of_tenant("default")
    outbox = store.outbox(keys, reader="x")
    click, _ = await harness.refund()
    await store.conn.command("XADD", keys.outbox, "*", "e", junk)
    assert not await outbox.has_new_click()
    signed = click.with_(request_digest="sha256:" + "7" * 64)
    await harness.reviews.decide(signed, Approve(), ANA)
    await store.conn.command("XADD", keys.outbox, "*", "e", junk)

    assert await outbox.has_new_click()
