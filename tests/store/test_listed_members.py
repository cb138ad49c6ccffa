"""Junk in a list hides none of the entries after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.errors import CorruptRecord, StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection, number
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.history import read
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.gateway.store.records.approvals import AT_ONCE, read_each
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness

APPROVAL = f"ap_default_{'a' * 32}"
TENANT = "default"
LONG_MS = 400 * 86_400_000
JUNK = [b"\xff", b"\xff" * 1000]

Read = Callable[[Store, Keys], Awaitable[list[str]]]


SORTED: dict[str, tuple[Callable[[Keys], str], Read]] = {
    "outdated cards": (
        lambda keys: keys.outdated,
        lambda store, keys: store.cards.outdated(keys, 9),
    ),
    "messages": (
        lambda keys: keys.messages_due,
        lambda store, keys: store.posted_messages.due(keys, 9),
    ),
    "deadlines": (
        lambda keys: keys.expiry,
        lambda store, keys: store.approvals.overdue(keys, 9),
    ),
    "all deadlines": (
        lambda keys: keys.expiry,
        lambda store, keys: store.approvals.scheduled(keys),
    ),
    "standing approvals": (
        lambda keys: keys.standing,
        lambda store, keys: store.standing.listed(keys),
    ),
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(("name", "read"), SORTED.values(), ids=SORTED)
async def test_junk_is_skipped(
    store: Store, name: Callable[[Keys], str], read: Read, junk: bytes
) -> None:
    keys, conn = store.keys_of_tenant(TENANT), store.conn
    is_listed = name(keys) != keys.standing
    member = keys.listed(APPROVAL) if is_listed else APPROVAL
    await conn.command("ZADD", name(keys), 0, junk, 1, member)
    await conn.command("PEXPIRE", name(keys), LONG_MS)

    assert await read(store, keys) == [APPROVAL]


async def test_timers_fire_behind_junk(store: Store) -> None:
    keys = store.keys_of_tenant(TENANT)
    timer = Timer(approval=APPROVAL, kind=TimerKind.REMIND)
    rows = [part for one in (*JUNK, b"ap_1 never") for part in (0, one)]
    await store.conn.command("ZADD", keys.timers, *rows, 1, str(timer))
    await store.conn.command("PEXPIRE", keys.timers, LONG_MS)

    assert await store.timers.due(keys, 9) == [timer]


async def test_a_run_is_read_past_junk(store: Store) -> None:
    harness = ServiceHarness(store)
    _, verdicts = await harness.submit(("process_refund", {"amount": 1}))
    approval = await harness.approval(verdicts[0].item_id)
    run = approval.run_ref
    keys = store.keys_of_tenant(TENANT)
    listed = keys.listed(APPROVAL)
    for name in (
        keys.run(run),
        keys.answered(run),
    ):
        await store.conn.command("ZADD", name, 0, b"\xff", 0, listed + b"\xff")
        await store.conn.command("PEXPIRE", name, LONG_MS)

    approvals = store.approvals
    every = [
        await approvals.of_run(keys, run),
        await approvals.open_of_run(keys, run),
    ]

    assert [[one.id for one in found] for found in every] == [[approval.id]] * 2
    assert await approvals.answered_of_run(keys, run) == []
    # A new turn of the run is opened all the same.
    assert (await harness.submit(("process_refund", {"amount": 2})))[1]


# A list of approvals takes a few round trips to the server, and not one for each.

IDS = [f"ap_{number}" for number in range(AT_ONCE)]


async def test_a_list_is_read_together_and_keeps_its_order() -> None:
    begun, are_all_sent = list[str](), asyncio.Event()

    async def load(approval_id: str) -> Loaded | None:
        begun.append(approval_id)
        if len(begun) == AT_ONCE:
            are_all_sent.set()
        await are_all_sent.wait()
        if approval_id == IDS[1]:
            raise CorruptRecord("broken")
        return None if approval_id == IDS[2] else cast("Loaded", approval_id)

    async with asyncio.timeout(10):
        found = await read_each(load, IDS)

    assert cast("list[object]", found) == [IDS[0], *IDS[3:]]


async def test_a_list_of_a_server_that_does_not_answer_is_not_a_short_one() -> None:
    async def load(approval_id: str) -> Loaded | None:
        raise StoreUnavailable(approval_id)

    with pytest.raises(StoreUnavailable):
        await read_each(load, IDS)


# Precedents are read despite entries of a broken writer.

CONN = Connection("redis://127.0.0.1:1")


def test_what_is_no_text_is_left_out() -> None:
    assert read(CONN, "key", {"ap_1.0": b"5 \xff done {}"}).precedents == ()


# Short ids find approvals and collected cards, as long as these are kept.


@pytest.fixture
def keys(harness: ServiceHarness) -> Keys:
    return harness.keys


async def found(harness: ServiceHarness, keys: Keys, short: str) -> list[str]:
    return await harness.store.approvals.with_short_id(keys, short)


async def test_each_short_id_is_found(harness: ServiceHarness, keys: Keys) -> None:
    click, _ = await harness.refund()
    short = short_id(click.approval)
    twin = f"ap_default_{short}{'0' * 24}"
    await harness.command("APPEND", keys.short(short), keys.listed(twin))

    assert await found(harness, keys, short) == sorted([click.approval, twin])
    [read] = await harness.reviews.read_short(short)
    assert read.approval.id == click.approval
    others = harness.store.keys_of_tenant("other")
    assert await found(harness, others, short) == []


async def test_a_short_id_ends_as_its_own(harness: ServiceHarness, keys: Keys) -> None:
    click, _ = await harness.refund()
    names = keys.head(click.approval), keys.short(short_id(click.approval))
    conn = harness.store.conn
    assert [await conn.command("PTTL", name) for name in names] == [-1, -1]

    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    ends = [number(await conn.command("PEXPIRETIME", name)) for name in names]
    assert ends[0] == ends[1] > 0
