"""An event whose reading got no answer is read again, once."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.store.connection.connection import Argument, Reply
from keyturn.gateway.store.events.outbox import Outbox
from keyturn.gateway.store.store import Store

READER = "slack:default"


async def put(outbox: Outbox, *names: str) -> None:
    for name in names:
        await outbox.put(
            Event(name=EventName.RUN_FAILED, tenant="default", thread=name)
        )


async def test_what_a_lost_answer_held_comes_with_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = store.keys_of_tenant("default")
    outbox = store.outbox(keys, reader=READER)
    await outbox.prepare()
    await put(outbox, "left")
    await store.outbox(keys, reader=READER).take("c", block_ms=1)
    assert len((await outbox.left("c"))[0]) == 1
    await put(outbox, "before")
    assert len(await outbox.take("c", block_ms=1)) == 1
    command = store.conn.command

    async def sent_twice(*words: Argument) -> Reply:
        monkeypatch.setattr(store.conn, "command", command)
        await command(*words)
        store.conn.resent += 1
        await put(outbox, "meanwhile")
        return await command(*words)

    await put(outbox, *(f"lost {number}" for number in range(4)))
    monkeypatch.setattr(store.conn, "command", sent_twice)

    found = await outbox.take("c", block_ms=1, limit=3)

    threads = [one.thread for one in found]
    assert threads == ["lost 0", "lost 1", "lost 2", "lost 3", "meanwhile"]
    assert await outbox.take("c", block_ms=1) == []
