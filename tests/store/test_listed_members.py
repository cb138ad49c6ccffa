"""What is no approval keeps none from being found that is listed behind it."""

from __future__ import annotations

import pytest

from twokey.gateway.store.store import Store

APPROVAL = f"ap_s0_{'a' * 32}"


@pytest.mark.parametrize("junk", [b"\xff", b"\xff" * 1000])
async def test_junk_is_taken_out(store: Store, junk: bytes) -> None:
    keys, conn = store.keys_of_tenant("default"), store.conn
    names = (keys.outdated("default"), keys.messages_due("default"))
    for name in names:
        await conn.command("ZADD", name, "-inf", junk, 1, keys.listed(APPROVAL))
        await conn.command("PEXPIRE", name, 60_000)

    cards = await store.cards.outdated(keys, "default", 9)
    messages = await store.posted_messages.due(keys, "default", 9)

    assert cards == messages == [APPROVAL]
    for name in names:
        assert await conn.command("ZCARD", name) == 1
