"""With any number of entries in the outbox, no card and no line is lost or late."""

from __future__ import annotations

import pytest

from keyturn.bot.delivery import publisher
from keyturn.bot.delivery.outbox_queue import (
    OutboxQueue,
)
from keyturn.bot.delivery.publisher import Feed
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.store.events.outbox import Outbox
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store

pytestmark = pytest.mark.usefixtures("slacks_limits")

HISTORY, CARD, VOTE = (
    EventName.ITEM_EXECUTED,
    EventName.APPROVAL_OPENED,
    EventName.ITEM_VOTED,
)


@pytest.fixture
def outbox(store: Store) -> Outbox:
    return store.outbox(store.keys_of_tenant("default"), reader="slack:default")


def feed_of(store: Store, outbox: Outbox) -> tuple[OutboxQueue, Feed]:
    queue = OutboxQueue()
    return queue, Feed(queue, outbox, store, store.keys_of_tenant("default"))


def about(approval: str, name: EventName) -> Event:
    return Event(name=name, tenant="default", approval=approval, channel="C1")


def said(queue: OutboxQueue) -> None:
    """Post every message of the queue."""
    for entry in list(queue):
        entry.events, entry.shown = [], entry.wanted
        queue.drop_done(entry)


async def acknowledged(
    queue: OutboxQueue, outbox: Outbox
) -> list[tuple[str, EventName]]:
    """Post and acknowledge every message of the queue; return them."""
    events = [event for entry in queue for event in entry.events]
    await outbox.done(*(event.seq for event in events))
    said(queue)
    return [(event.approval, event.name) for event in events]


async def test_cards_and_calls_for_people_are_seen_behind_any_number_of_lines(
    store: Store, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "CAPACITY", 3)
    queue, reading = feed_of(store, outbox)
    await reading.start()
    for number in range(8):
        await outbox.put(about(f"old{number}", HISTORY))
    await outbox.put(about("new", CARD))
    await outbox.put(about("old7", VOTE))

    assert await reading.read_new()

    assert "new" in {entry.key for entry in queue}
    held = {entry.key: [event.name for event in entry.events] for entry in queue}
    assert held["old2"] == [HISTORY]
    assert held["old7"] == [VOTE]
    assert held["old5"] == [], "its card is brought up to date, its line can wait"
    assert all(entry.is_card_due for entry in queue)


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_lines_that_had_to_wait_are_said_in_order_and_once(
    store: Store,
    outbox: Outbox,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_restarted: bool,
) -> None:
    monkeypatch.setattr(publisher, "CAPACITY", 3)
    monkeypatch.setattr(publisher, "_BLOCK_MS", 1)
    monkeypatch.setattr(publisher, "_PAGE", 4)
    queue, reading = feed_of(store, outbox)
    await reading.start()
    for number in range(11):
        await outbox.put(about(f"a{number}", HISTORY))
        await outbox.put(about(f"b{number}", VOTE))
    for _ in range(8):
        await reading.read_new()
    if is_restarted:
        queue, reading = feed_of(store, outbox)
        await reading.start()

    found = list[tuple[str, EventName]]()
    for _ in range(12):
        found += await acknowledged(queue, outbox)
        await reading.read_new()

    lines = [key for key, name in found if name is HISTORY]
    assert lines == [f"a{number}" for number in range(11)]
    assert sorted(key for key, name in found if name is VOTE) == sorted(
        f"b{number}" for number in range(11)
    )
    assert (await outbox.left("test"))[0] == []


async def test_cards_beyond_what_fits_in_memory_wait_in_the_index(
    store: Store, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MOST_ENTRIES", 4)
    monkeypatch.setattr(publisher, "_BLOCK_MS", 1)
    opened = [f"a{number}" for number in range(10)]
    asked, left = list[int](), list[Event]()
    outdated, mark_outdated = store.cards.outdated, store.cards.mark_outdated

    async def asking(keys: Keys, limit: int) -> list[str]:
        asked.append(limit)
        return await outdated(keys, limit)

    async def marking(keys: Keys, *approvals: str) -> None:
        # Not acknowledged before: a crash in between loses no card.
        left.extend((await outbox.left("test"))[0])
        await mark_outdated(keys, *approvals)

    monkeypatch.setattr(store.cards, "outdated", asking)
    monkeypatch.setattr(store.cards, "mark_outdated", marking)
    queue, reading = feed_of(store, outbox)
    await reading.start()
    for name in opened:
        await outbox.put(about(name, CARD))
    await outbox.put(about("a9", VOTE))

    await reading.read_new()

    assert [entry.key for entry in queue] == ["a0", "a1", "a2", "a3", "a9"]
    assert len(asked) == 1, "a full queue asks for no more of them"
    events = [event.name for entry in queue for event in entry.events]
    assert events == [CARD] * 4 + [VOTE], "what calls people is kept"
    assert await outdated(reading.keys, 99) == opened[4:]
    assert [one.approval for one in left][:10] == opened
    after, _ = await outbox.left("test")
    assert len(after) == 5


async def test_after_an_event_that_nobody_can_read_all_cards_are_looked_for(
    outbox: Outbox, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()
    queue, reading = feed_of(store, outbox)

    async def walk(_store: Store, _keys: Keys) -> int:
        looks.append(1)
        return 0

    monkeypatch.setattr(publisher, "mark_missed", walk)
    await reading.start()
    looks.clear()
    key = store.keys_of_tenant("default").outbox
    await store.conn.command("XADD", key, "*", "e", "{", "at", 1)
    await outbox.put(about("a1", CARD))

    await reading.read_new()
    await outbox.put(about("a2", CARD))
    await reading.read_new()

    assert looks == [1]
    # Between both comes the security event about the entry that is no event.
    assert [entry.key for entry in queue] == ["a1", " ", "a2"]
