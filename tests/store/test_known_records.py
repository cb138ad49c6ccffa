"""What is remembered of a record is what the store has, or it does not count."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness, claim_of
from tests.service.showing import shown
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reject,
    Respond,
)
from twokey.gateway.errors import CorruptRecord
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Claimed, ClaimRequest, Refused
from twokey.gateway.store import codec, known_records
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.changing_many import load_many
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.known_records import KnownRecords, Lasting
from twokey.gateway.store.record_seals import RecordSeals
from twokey.gateway.store.schemas import SchemaStore
from twokey.gateway.store.store import Store

KEYS = Keys("s0")
REFUND = "process_refund"
_NUMBERS = itertools.count(100)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the records that are parsed from here on."""
    found, plain = list[str](), codec.approval

    def approval(approval_id: str, *given: object) -> object:
        found.append(approval_id)
        return plain(approval_id, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(codec, "approval", approval)
    return found


async def as_stored(store: Store, approval_id: str) -> object:
    """Read a record as another process does."""
    other = Store(store.conn.url, secrets=SECRETS)
    try:
        loaded = await other.approvals.load(approval_id)
    finally:
        await other.close()
    assert loaded is not None
    return loaded.approval


@pytest.mark.parametrize(
    "decision",
    [
        Approve(reason="fine"),
        Edit(args={"amount": 5}, reason="less"),
        Reject(reason="no"),
        Respond(message="Ask her first."),
    ],
    ids=lambda decision: decision.kind,
)
async def test_what_was_decided_is_remembered_as_it_is_stored(
    harness: ServiceHarness, store: Store, parsed: list[str], decision: Decision
) -> None:
    """The second call of its kind: what is known of the first is only shown."""
    for _ in range(2):
        click = await shown(harness)
        await harness.reviews.decide(click, decision, ANA)
        parsed.clear()

        loaded = await store.approvals.load(click.approval)

        assert parsed == []
        assert loaded is not None
        assert loaded.approval == await as_stored(store, click.approval)


async def test_what_ran_is_remembered_as_it_is_stored(
    harness: ServiceHarness, store: Store, parsed: list[str]
) -> None:
    claim, item_id = await authorized(harness)
    parsed.clear()

    granted = await harness.agents.claim(claim)
    assert isinstance(granted, Claimed)
    done = Result(ok=True, summary="done")
    assert await harness.agents.finish(item_id, granted.fence, done)

    loaded = await store.approvals.load(item_id.partition(".")[0])
    assert parsed == []
    assert loaded is not None
    assert loaded.approval == await as_stored(store, loaded.approval.id)
    assert loaded.approval.items[0].state is ItemState.EXECUTED


async def test_a_claim_that_was_renewed_is_remembered_as_it_is_stored(
    harness: ServiceHarness, store: Store, parsed: list[str]
) -> None:
    """So the end of a call that took long is written without a reading, too."""
    claim, item_id = await authorized(harness)
    granted = await harness.agents.claim(claim)
    assert isinstance(granted, Claimed)
    approval_id = item_id.partition(".")[0]
    before = await store.conn.command("HGET", KEYS.head(approval_id), "0:u")
    parsed.clear()

    async def is_later() -> bool:
        assert await harness.agents.heartbeat(item_id, granted.fence)
        return await store.conn.command("HGET", KEYS.head(approval_id), "0:u") != before

    await eventually(is_later)

    loaded = await store.approvals.load(approval_id)
    assert parsed == []
    assert loaded is not None
    assert loaded.approval == await as_stored(store, approval_id)


def forgetting(
    store: Store, clock: Callable[[], float] = time.monotonic
) -> KnownRecords:
    """Return what a process knows that has just started."""
    return KnownRecords(SchemaStore(store.conn), RecordSeals(store.conn), clock=clock)


@pytest.mark.parametrize(("field", "value"), [("0:s", "lapsed")])
async def test_a_call_is_not_started_over_another_change_of_the_same_number(
    harness: ServiceHarness, store: Store, field: str, value: str
) -> None:
    """A master that took over may have one, in place of the change that it lacks."""
    claim, item_id = await authorized(harness)
    head = KEYS.head(item_id.partition(".")[0])
    was = await store.conn.command("HGET", head, field)
    assert isinstance(was, bytes)
    await store.conn.command("HSET", head, field, value)

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Refused)
    await store.conn.command("HSET", head, field, was)
    assert (await harness.item(item_id)).owner == ""


async def test_a_record_that_was_damaged_since_is_not_taken_for_what_it_was(
    harness: ServiceHarness, store: Store
) -> None:
    _, item_id = await authorized(harness)
    approval_id = item_id.partition(".")[0]
    # Past the seal, which would tell as well: `tests.resealing`.
    await store.conn.keep(["SET", KEYS.pinned(approval_id), "{}"])

    with pytest.raises(CorruptRecord):
        await store.approvals.load(approval_id)


async def test_time_that_passes_counts_for_what_is_remembered(
    harness: ServiceHarness, store: Store
) -> None:
    _, item_id = await authorized(harness)
    approval_id = item_id.partition(".")[0]
    now_s = [100.0]
    known = KnownRecords(
        SchemaStore(store.conn), RecordSeals(store.conn), clock=lambda: now_s[0]
    )
    read = await load_many(store.conn, known, KEYS, [approval_id])

    now_s[0] += 2.5

    latest = known.latest(approval_id)
    assert latest is not None
    assert latest.now_ms == read[approval_id].now_ms + 2500
    assert latest.remembered


async def test_what_was_read_longest_ago_is_forgotten_first(
    harness: ServiceHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await authorized(harness))[1].partition(".")[0] for _ in range(3)]
    known = forgetting(store)
    await load_many(store.conn, known, KEYS, ids[:2])
    monkeypatch.setattr(known_records, "MOST_BYTES", known.bytes)

    await load_many(store.conn, known, KEYS, ids[:1])
    await load_many(store.conn, known, KEYS, ids[2:])

    assert known.latest(ids[1]) is None
    assert known.latest(ids[2]) is not None
    assert known.bytes <= known_records.MOST_BYTES


async def test_what_nobody_uses_is_forgotten_after_a_while(
    harness: ServiceHarness, store: Store
) -> None:
    ids = [(await authorized(harness))[1].partition(".")[0] for _ in range(4)]
    at_s = [100.0]
    known = KnownRecords(
        SchemaStore(store.conn), RecordSeals(store.conn), clock=lambda: at_s[0]
    )
    await load_many(store.conn, known, KEYS, ids[:3])

    at_s[0] += known_records.KEPT_S / 2
    known.renewed(ids[1], 0, 1)
    at_s[0] += known_records.KEPT_S / 2 + 1
    await load_many(store.conn, known, KEYS, ids[3:])

    found = [known.latest(one) is not None for one in ids]
    assert found == [False, True, False, True]
    held = known.bytes
    known.forget(ids[1])
    known.forget(ids[3])
    assert held > known.bytes == 0


async def test_what_is_remembered_takes_no_more_memory_than_it_counts(
    harness: ServiceHarness, store: Store
) -> None:
    ids = [(await authorized(harness))[1].partition(".")[0] for _ in range(40)]
    known = forgetting(store)
    # What all records share is made by the first.
    await load_many(store.conn, known, KEYS, ids[:1])
    counted = known.bytes
    gc.collect()
    tracemalloc.start()
    try:
        await load_many(store.conn, known, KEYS, ids[1:])
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken < 1.5 * (known.bytes - counted)


async def authorized(harness: ServiceHarness) -> tuple[ClaimRequest, str]:
    """Return the claim of a call that somebody approved, and its id."""
    number = next(_NUMBERS)
    ref, (verdict,) = await harness.submit(
        (REFUND, {"amount": number}), thread=f"k{number}"
    )
    await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    return claim_of(ref, verdict), verdict.item_id


async def test_a_record_that_is_made_later_is_the_one_that_was_written(
    harness: ServiceHarness, store: Store, parsed: list[str]
) -> None:
    """It counts from when it was written, and replaces what was known before."""
    _, item_id = await authorized(harness)
    approval_id, made = item_id.partition(".")[0], list[int]()
    known = forgetting(store)
    read = (await load_many(store.conn, known, KEYS, [approval_id]))[approval_id]
    assert read.stored
    rev, seal, size = read.approval.rev, read.stored.seal, 10_000

    def make() -> Loaded | None:
        made.append(1)
        return read

    known.wrote_later(approval_id, rev, seal, size, make)
    assert known.bytes == size
    parsed.clear()

    assert made == []
    latest = known.latest(approval_id)
    assert latest
    assert latest.approval is read.approval
    assert (await load_many(store.conn, known, KEYS, [approval_id]))[
        approval_id
    ].approval is read.approval
    assert (made, parsed) == ([1], [])
    assert known.lasting([approval_id])[approval_id] == Lasting(rev, seal)
    known.forget(approval_id)
    assert known.bytes == 0


async def test_what_is_read_before_it_is_made_is_parsed(
    harness: ServiceHarness, store: Store, parsed: list[str]
) -> None:
    """Making it takes longer; what was parsed is what is remembered from then on."""
    _, item_id = await authorized(harness)
    approval_id, made = item_id.partition(".")[0], list[int]()
    known = forgetting(store)
    read = (await load_many(store.conn, known, KEYS, [approval_id]))[approval_id]
    assert read.stored

    def make() -> Loaded | None:
        made.append(1)
        return None

    known.wrote_later(approval_id, read.approval.rev, read.stored.seal, 10_000, make)
    parsed.clear()

    again = (await load_many(store.conn, known, KEYS, [approval_id]))[approval_id]
    latest = known.latest(approval_id)
    assert latest
    assert again.approval == read.approval
    assert latest.approval is again.approval
    assert (made, parsed) == ([], [approval_id])


@pytest.mark.parametrize("seal", [b"x" * 16, b""])
async def test_a_record_of_another_seal_is_not_what_was_written(
    harness: ServiceHarness, store: Store, parsed: list[str], seal: bytes
) -> None:
    _, item_id = await authorized(harness)
    approval_id, known = item_id.partition(".")[0], forgetting(store)
    read = (await load_many(store.conn, known, KEYS, [approval_id]))[approval_id]
    assert read.stored
    other = seal and replace(read, stored=replace(read.stored, head={"h": seal}))
    known.wrote_later(
        approval_id, read.approval.rev, read.stored.seal, 9, lambda: other or None
    )
    parsed.clear()

    assert known.latest(approval_id) is None
    assert known.bytes == 0
    await load_many(store.conn, known, KEYS, [approval_id])
    assert parsed == [approval_id]
