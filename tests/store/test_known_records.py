"""A cached record equals the store's, or it does not count."""

from __future__ import annotations

import itertools

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Reject,
    Respond,
)
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.wire import ClaimRequest, Refused
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.records import codec, known_records
from keyturn.gateway.store.records.changing import load_many
from keyturn.gateway.store.records.codec import RecordSeals
from keyturn.gateway.store.records.known_records import KnownRecords
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness, claim_of
from tests.store_secrets import SECRETS

KEYS = Keys("default")
REFUND = "process_refund"
_NUMBERS = itertools.count(100)


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
    for _ in range(2):
        _, (verdict,) = await harness.submit((REFUND, {"amount": next(_NUMBERS)}))
        click = await harness.click(verdict)
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

    granted = await harness.granted(claim)
    done = Result(ok=True, summary="done")
    assert await harness.agents.finish(item_id, granted.fence, done)

    loaded = await store.approvals.load(item_id.partition(".")[0])
    assert parsed == []
    assert loaded is not None
    assert loaded.approval == await as_stored(store, loaded.approval.id)
    assert loaded.approval.items[0].state is ItemState.EXECUTED


def forgetting(store: Store) -> KnownRecords:
    """Return what a process knows that has just started."""
    return KnownRecords(RecordSeals(store.conn))


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
    # Without the seal, which would detect it as well: `tests.resealing`.
    await store.conn.keep(["SET", KEYS.document(approval_id), "{}"])

    with pytest.raises(CorruptRecord):
        await store.approvals.load(approval_id)


async def test_what_was_read_longest_ago_is_forgotten_first(
    harness: ServiceHarness,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    parsed: list[str],
) -> None:
    ids = [(await authorized(harness))[1].partition(".")[0] for _ in range(3)]
    known = forgetting(store)
    await load_many(store.conn, known, KEYS, ids[:2])
    monkeypatch.setattr(known_records, "MOST_BYTES", known.bytes)
    await load_many(store.conn, known, KEYS, ids[:1])
    await load_many(store.conn, known, KEYS, ids[2:])
    assert known.bytes <= known_records.MOST_BYTES
    parsed.clear()

    await load_many(store.conn, known, KEYS, ids[2:])
    await load_many(store.conn, known, KEYS, ids[1:2])

    assert parsed == ids[1:2]


async def authorized(harness: ServiceHarness) -> tuple[ClaimRequest, str]:
    """Return the claim of an approved call, and its id."""
    number = next(_NUMBERS)
    ref, (verdict,) = await harness.submit(
        (REFUND, {"amount": number}), thread=f"k{number}"
    )
    await harness.decide(verdict, Approve())
    return claim_of(ref, verdict), verdict.item_id
