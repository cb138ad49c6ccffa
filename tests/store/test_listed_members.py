"""Junk in a list hides none of the entries after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness

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
async def test_junk_is_taken_out(
    store: Store, name: Callable[[Keys], str], read: Read, junk: bytes
) -> None:
    keys, conn = store.keys_of_tenant(TENANT), store.conn
    is_listed = name(keys) != keys.standing
    member = keys.listed(APPROVAL) if is_listed else APPROVAL
    await conn.command("ZADD", name(keys), 0, junk, 1, member)
    await conn.command("PEXPIRE", name(keys), LONG_MS)

    assert await read(store, keys) == [APPROVAL]
    assert await conn.command("ZCARD", name(keys)) == 1


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


async def test_a_junk_process_or_counter_keeps_no_process_from_starting(
    store: Store,
) -> None:
    keys, conn = store.keys_of_tenant(TENANT), store.conn
    counters = keys.restore_counters
    for name in (keys.members, counters):
        await conn.command("HSET", name, "a:x", b"\xff", "p:x", "\u0661 {}", "r", "x")
        await conn.command("PEXPIRE", name, LONG_MS)

    assert not (await store.processes.read(keys)).alive
    assert not (await store.restore_counters.read(keys)).of
