"""No read grows with old data: rejections, freezes, delegations, windows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.waiting_changes import acknowledge
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.service.people.queue import DelegationService
from keyturn.gateway.store.connection.connection import Argument, number
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.history import AgentLoad, fingerprint, held_in
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.store.reviewers import bot_records
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness

EMAIL: tuple[str, JsonObject] = ("send_email", {"n": 1})
RUN = RunRef(agent="support", thread="t1")
MANY = 100_000


@pytest.fixture
def keys(store: Store) -> Keys:
    return store.keys_of_tenant("default")


async def filled(store: Store, key: str, count: int) -> None:
    """Put so many fields of others into a hash."""
    page = 5000
    for start in range(0, count, page):
        rows: list[Argument] = []
        for index in range(start, start + page):
            rows += [f"other{index}", "1 {}"]
        await store.conn.command("HSET", key, *rows)


async def load(store: Store, keys: Keys, **wanted: Sequence[str]) -> AgentLoad:
    return await store.agent_load.load(
        keys, "support", "t1", RUN, turn_key="none", **wanted
    )


async def test_a_thread_reads_rejections_of_its_calls(store: Store, keys: Keys) -> None:
    harness = ServiceHarness(store)
    harness.policy = harness.policy.with_(
        protect=harness.policy.protect.with_(same_rejected_within=3)
    )
    _, (verdict,) = await harness.submit(EMAIL)
    await harness.decide(verdict, Reject())
    await filled(store, keys.rejected("support", "t1"), MANY)

    found = await load(store, keys, calls=[fingerprint(*EMAIL)])
    _, (again, fresh) = await harness.submit(EMAIL, ("send_email", {"n": 2}))

    # The others are there as unreadable entries.
    assert [one.by for one in found.rejected.values()] == ["ANA"]
    assert (again.kind, fresh.kind) == (VerdictKind.DENY, VerdictKind.HOLD)


async def test_as_many_delegations_as_can_be_read_at_each_decision(
    store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bot_records, "MOST_DELEGATIONS", 3)
    service = DelegationService(store, tenant="default")
    day = timedelta(days=1)
    for user in ("U1", "U2", "U3"):
        await service.delegate(Person(team="T", user=user), "UBOSS", day)

    with pytest.raises(ValueError, match="as many as can at once"):
        await service.delegate(Person(team="T", user="U4"), "UBOSS", day)

    # A person with a delegation may change it, and an ended one makes room.
    await service.delegate(Person(team="T", user="U3"), "UOTHER", day)
    assert await service.take_back(Person(team="T", user="U1"))
    await service.delegate(Person(team="T", user="U4"), "UBOSS", day)
    assert {one.user for one in await service.given_to("UBOSS")} == {"U2", "U4"}
    assert number(await store.conn.command("HLEN", keys.delegations)) == 3


async def test_a_window_never_counts_too_little(store: Store, keys: Keys) -> None:
    window = keys.window("refunds", "r")
    past, now_ms = 25_000, await store.conn.now_ms("")
    rows: list[Argument] = []
    for index in range(past):
        rows += [now_ms - past + index, f"call{index} 2"]
    rows += [now_ms + 600_000, "last 7"]
    await store.conn.transaction(
        ["ZADD", window, *rows],
        ["SET", f"{window}:sum", 2 * past + 7],
        ["PEXPIREAT", window, now_ms + 600_000],
        ["PEXPIREAT", f"{window}:sum", now_ms + 600_000],
    )

    peek = [held_in(keys, [window])]
    sums = [(await store.windows.totals_of_each(peek))[0][0] for _ in range(4)]

    assert sums == [2 * 15_000 + 7, 2 * 5_000 + 7, 7, 7]
    assert number(await store.conn.command("ZCARD", window)) == 1


# The store reads and writes approvals by id, and reports unknown ones.

NO_ID = "ap_of_somebody_else"


async def taken(loaded: Loaded) -> Write:
    change = acknowledge(loaded.approval, ANA, now_ms=loaded.now_ms)
    assert isinstance(change, Change)
    return Write(change)


async def test_a_text_that_is_no_id_names_no_approval(harness: ServiceHarness) -> None:
    store = harness.store.approvals

    assert await store.load(NO_ID) is None
    assert await store.change(NO_ID, taken) is None
    assert not await store.heartbeat(NO_ID, 0, 1)


async def test_what_moves_all_the_time_is_not_written(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    keys, conn = harness.keys, harness.store.conn
    looked: list[int] = []

    async def too_late(loaded: Loaded) -> Write:
        looked.append(loaded.approval.rev)
        await conn.command("HINCRBY", keys.head(click.approval), "rev", 1)
        return await taken(loaded)

    with pytest.raises(StoreUnavailable):
        await harness.store.approvals.change(click.approval, too_late)

    after = await harness.store.approvals.load(click.approval)
    assert after is not None
    assert after.approval.acknowledged is None
    assert looked == list(range(1, after.approval.rev))
