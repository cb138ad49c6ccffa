"""The seal of an audit entry proves that one of our processes wrote it."""

from __future__ import annotations

import json

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.service.freezing import FreezeService
from keyturn.gateway.store.audit_log import row_of
from keyturn.gateway.store.audit_seals import (
    EntrySeal,
    event_texts,
    parts_of,
    read_seal,
)
from keyturn.gateway.store.audit_segments import Row
from keyturn.gateway.store.connection import entries
from keyturn.gateway.store.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.keys import Keys, keys_of_tenant
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness

EVENT = Event(name=EventName.FREEZE_SET, tenant="default", approval="ap_default_1")


async def stream(store: Store, keys: Keys) -> list[Row]:
    found = await store.conn.command("XRANGE", keys.audit, "-", "+")
    return [row_of(store.conn, keys, entry) for entry in entries(found)]


async def seals(store: Store) -> list[tuple[str, EntrySeal]]:
    keys = store.keys_of_tenant("default")
    return [
        (
            str(json.loads(row.event)["name"]),
            read_seal(store.conn, keys, row.event, row.seal),
        )
        for row in await stream(store, keys)
    ]


async def test_every_entry_of_a_decision_has_a_seal_and_the_rev_of_its_approval(
    harness: ServiceHarness,
) -> None:
    click, _ = await harness.refund(899, thread="t1")
    await harness.reviews.decide(click, Approve(), ANA)
    click, _ = await harness.refund(12, thread="t2")
    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    found = await seals(harness.store)

    assert {seal.state for _, seal in found} == {SealState.SEALED}
    assert len({seal.nonce for _, seal in found}) == len(found)
    revs = [(name, seal.rev) for name, seal in found]
    assert ("approval.opened", 1) in revs
    assert ("item.authorized", 2) in revs
    assert ("item.rejected", 2) in revs


async def test_freezes_and_what_is_announced_have_seals(store: Store) -> None:
    keys = store.keys_of_tenant("default")
    await store.outbox(keys, reader="r").put(EVENT)
    scope = FreezeScope(kind=ScopeKind.AGENT, name="shop")
    await FreezeService(store).freeze(scope, "cli/ana", reason="why")

    assert {seal.state for _, seal in await seals(store)} == {SealState.SEALED}


async def test_a_seal_is_of_its_entry_shard_rev_and_secret(store: Store) -> None:
    keys = store.keys_of_tenant("default")
    [text] = json.loads(
        event_texts(store.conn, keys, [EVENT], of=["ap_default_1"], rev=7)
    )
    event, seal = parts_of(text)
    other = event.replace("freeze.set", "freeze.lifted")
    rev, nonce, code = seal.split(".")
    _, unlike = parts_of(json.loads(event_texts(store.conn, keys, [EVENT]))[0])

    assert read_seal(store.conn, keys, event, seal)[:2] == (SealState.SEALED, 7)
    for wrong in (
        (keys, other, seal),
        (keys_of_tenant("s7"), event, seal),
        (keys, event, f"8.{nonce}.{code}"),
        (keys, event, f"{rev}.{nonce[::-1]}.{code}"),
        (keys, event, f"{rev}.{nonce}.{unlike.split('.')[2]}"),
        (keys, event, "junk"),
        (keys, event, f"{rev}.{nonce}."),
        (keys, "\udcff", seal),
    ):
        assert read_seal(store.conn, *wrong)[:2] == (SealState.FORGED, 0)
    assert read_seal(store.conn, keys, event, "").state is SealState.UNSEALED
    older = store.conn.secrets
    store.conn.secrets = (b"n" * 32, *older)
    assert read_seal(store.conn, keys, event, seal).state is SealState.SEALED
    store.conn.secrets = (b"n" * 32,)
    assert read_seal(store.conn, keys, event, seal).state is SealState.FORGED
