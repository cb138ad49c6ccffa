"""An event stays until every reader has acknowledged it, and no longer than needed."""

from __future__ import annotations

import logging

import pytest

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.connection.connection import (
    Argument,
    Reply,
    number,
)
from keyturn.gateway.store.connection.listed_members import approvals_by_score
from keyturn.gateway.store.events import outbox
from keyturn.gateway.store.events.outbox import (
    Outbox,
    backlog,
    drop_idle_readers,
    trim_outbox,
)
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.sealing.event_seals import sealed_text
from keyturn.gateway.store.store import Store

MANY = 110_000
"""More events than a stream of a usual fixed length would keep."""

EVENT = Event(name=EventName.RUN_FINISHED, tenant="other").model_dump_json()


@pytest.fixture
def keys(store: Store) -> Keys:
    return store.keys_of_tenant("default")


def sealed(store: Store, keys: Keys) -> tuple[str, str]:
    """Return the event and its seal."""
    event, _, seal = sealed_text(store.conn, keys, EVENT).partition("\n")
    return event, seal


async def old_events(store: Store, keys: Keys, count: int) -> None:
    """Announce events with a time long ago."""
    start = number(await store.conn.command("XLEN", keys.outbox))
    body, seal = sealed(store, keys)
    commands: list[list[Argument]] = [
        ["XADD", keys.outbox, f"{index + 1}-0", "e", body, "at", 1, "s", seal]
        for index in range(start, start + count)
    ]
    await store.conn.transaction(*commands)


async def reader(store: Store, keys: Keys, name: str) -> Outbox:
    found = store.outbox(keys, reader=name)
    await found.prepare()
    return found


async def acknowledged(outbox: Outbox, count: int) -> None:
    events = await outbox.take("c", block_ms=1, limit=count)
    await outbox.done(*(event.seq for event in events))


async def length(store: Store, keys: Keys) -> int:
    return number(await store.conn.command("XLEN", keys.outbox))


async def test_an_unread_entry_is_not_dropped(store: Store, keys: Keys) -> None:
    bot, orphans = (
        await reader(store, keys, "bot"),
        await reader(store, keys, "orphans"),
    )
    await old_events(store, keys, 3000)
    await acknowledged(orphans, 3000)

    await trim_outbox(store.conn, keys)
    assert await length(store, keys) == 3000
    await acknowledged(bot, 2000)
    await trim_outbox(store.conn, keys)

    left = await length(store, keys)
    assert 1000 <= left < 1200, "whole nodes of the stream are dropped"
    assert len(await bot.take("c", block_ms=1, limit=3000)) == 1000


async def test_an_unacknowledged_entry_stays(store: Store, keys: Keys) -> None:
    bot = await reader(store, keys, "bot")
    await old_events(store, keys, 1000)
    taken = await bot.take("c", block_ms=1, limit=1000)
    await bot.done(*(event.seq for event in taken[:300]), *(e.seq for e in taken[400:]))

    await trim_outbox(store.conn, keys)

    waiting, after = await bot.left("d", limit=500)
    assert [event.seq for event in waiting] == [event.seq for event in taken[300:400]]
    assert after == ""
    assert 700 <= await length(store, keys) < 900


async def test_nothing_is_dropped_without_a_reader(store: Store, keys: Keys) -> None:
    assert (await trim_outbox(store.conn, keys)).problem == ""
    await old_events(store, keys, 300)

    assert (await trim_outbox(store.conn, keys)).problem == ""

    assert await length(store, keys) == 300


async def test_a_sweep_names_the_reader_that_keeps_too_much(
    store: Store,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(outbox, "MANY", 300)
    clock = [0.0]
    sweeper = Sweeper(store, clock=lambda: clock[0])
    await reader(store, keys, "slack:away")
    orphans = await reader(store, keys, "orphans")
    await old_events(store, keys, 301)
    await acknowledged(orphans, 301)

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await sweeper.sweep()
        assert caplog.text.count("outbox.long") == 1
        clock[0] += 700
        await sweeper.sweep()

    assert caplog.text.count("outbox.long") == 2
    assert "reader=slack:away" in caplog.text
    assert "'slack:away' has not read" in (await backlog(store.conn, keys)).problem
    assert await length(store, keys) == 301


async def test_a_reader_away_for_a_month_may_return(store: Store, keys: Keys) -> None:
    gone, here = await reader(store, keys, "gone"), await reader(store, keys, "here")
    await old_events(store, keys, 1)
    await gone.take("c", block_ms=1)
    await drop_idle_readers(store.conn, keys, idle_ms=KEEP_MS)
    assert {one.name for one in await outbox.reader_states(store.conn, keys)} == {
        "gone",
        "here",
    }

    await drop_idle_readers(store.conn, keys, idle_ms=-1)

    names = {one.name for one in await outbox.reader_states(store.conn, keys)}
    assert names == {"here"}, "one that never read may just have come"
    await gone.prepare()
    assert len(await gone.take("c", block_ms=1)) == 1
    del here


async def test_a_long_sorted_set_is_read_once(store: Store, keys: Keys) -> None:
    rows: list[Argument] = []
    for index in range(57):
        # Twenty of them at one moment, more than a page has.
        rows += [7 if 20 <= index < 40 else index, f"m{index:02}"]
    await store.conn.command("ZADD", keys.expiry, *rows)

    listed = approvals_by_score(store.conn, keys, keys.expiry, size=6)
    pages = [page async for page in listed]

    found = [one for page in pages for one in page]
    assert sorted(found) == [f"m{index:02}" for index in range(57)]
    assert max(map(len, pages)) <= 6


# An event whose reading got no answer is read again, once.

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
