"""The seal of an audit entry proves that one of our processes wrote it."""

from __future__ import annotations

import json

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.store.audit.files import Row
from keyturn.gateway.store.audit.log import row_of
from keyturn.gateway.store.connection.connection import entries
from keyturn.gateway.store.keys import Keys, keys_of_tenant
from keyturn.gateway.store.sealing.event_seals import (
    event_texts,
    nonce_of,
    parts_of,
    read_seal,
)
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness

EVENT = Event(name=EventName.FREEZE_SET, tenant="default", approval="ap_default_1")


async def stream(store: Store, keys: Keys) -> list[Row]:
    found = await store.conn.command("XRANGE", keys.audit, "-", "+")
    return [row_of(store.conn, keys, entry) for entry in entries(found)]


async def states(store: Store) -> set[SealState]:
    keys = store.keys_of_tenant("default")
    rows = await stream(store, keys)
    return {read_seal(store.conn, keys, one.event, one.seal) for one in rows}


async def test_every_entry_of_a_decision_has_a_seal_of_its_own(
    harness: ServiceHarness,
) -> None:
    click, _ = await harness.refund(899, thread="t1")
    await harness.reviews.decide(click, Approve(), ANA)
    click, _ = await harness.refund(12, thread="t2")
    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    rows = await stream(harness.store, harness.keys)

    assert await states(harness.store) == {SealState.SEALED}
    assert len({nonce_of(one.seal) for one in rows}) == len(rows) >= 4


async def test_a_seal_is_of_its_entry_tenant_and_secret(store: Store) -> None:
    keys = store.keys_of_tenant("default")
    [text] = json.loads(event_texts(store.conn, keys, [EVENT]))
    event, seal = parts_of(text)
    other = event.replace("freeze.set", "freeze.lifted")
    nonce, code = seal.split(".")
    _, unlike = parts_of(json.loads(event_texts(store.conn, keys, [EVENT]))[0])

    assert read_seal(store.conn, keys, event, seal) is SealState.SEALED
    for wrong in (
        (keys, other, seal),
        (keys_of_tenant("s7"), event, seal),
        (keys, event, f"{nonce[::-1]}.{code}"),
        (keys, event, f"{nonce}.{unlike.split('.')[1]}"),
        (keys, event, "junk"),
        (keys, event, f"{nonce}."),
        (keys, "\udcff", seal),
    ):
        assert read_seal(store.conn, *wrong) is SealState.FORGED
    assert read_seal(store.conn, keys, event, "") is SealState.UNSEALED
    older = store.conn.secrets
    store.conn.secrets = (b"n" * 32, *older)
    assert read_seal(store.conn, keys, event, seal) is SealState.SEALED
    store.conn.secrets = (b"n" * 32,)
    assert read_seal(store.conn, keys, event, seal) is SealState.FORGED
