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
