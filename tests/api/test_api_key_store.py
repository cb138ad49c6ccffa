"""A stored API key is the gateway's, or it is refused and reported."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from keyturn.gateway.api.api_keys import ApiKeys
from keyturn.gateway.approvals.events import Event, EventName, SecurityKind
from keyturn.gateway.protocol.http_api import Scope
from keyturn.gateway.store.audit.index import AuditIndex
from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.http.api_keys import KEPT, ApiKeyStore, FoundKey
from keyturn.gateway.store.sealing.event_seals import parts_of, sealed_text
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import NewKey, new_api_key
from keyturn.gateway.trust.seals import Purpose, SealKeys
from tests.service.audit_harness import AuditHarness

SEALS = SealKeys([b"a" * 32], Purpose.API_KEYS)
OTHER_SEALS = SealKeys([b"b" * 32], Purpose.API_KEYS)
NEWER_SEALS = SealKeys([b"b" * 32, b"a" * 32], Purpose.API_KEYS)


@pytest.fixture
def kept(store: Store) -> ApiKeyStore:
    return ApiKeyStore(store, SEALS, tenant="default")


@pytest.fixture
def keys(kept: ApiKeyStore) -> ApiKeys:
    return ApiKeys(SEALS, kept.find, kept.report)


async def made(
    kept: ApiKeyStore,
    *,
    seals: SealKeys = SEALS,
    tenant: str = "default",
    lives: timedelta = timedelta(hours=1),
    scopes: tuple[Scope, ...] = (Scope.READ,),
) -> NewKey:
    now = await kept.now()
    new = new_api_key(
        seals,
        name="ci",
        tenant=tenant,
        agents=["support"],
        now=now,
        expires_at=now + lives,
        scopes=scopes,
    )
    await kept.add(new.kept, "cli/ana")
    return new


async def stored(store: Store) -> dict[str, bytes]:
    name = store.keys_of_tenant("default").api_keys
    return fields(await store.conn.command("HGETALL", name))


async def put(store: Store, key_id: str, body: bytes) -> None:
    name = store.keys_of_tenant("default").api_keys
    await store.conn.command("HSET", name, key_id, body)


async def test_a_key_is_what_was_made(
    store: Store, kept: ApiKeyStore, keys: ApiKeys
) -> None:
    new = await made(kept)

    found = await keys.check(new.text)

    assert found == new.kept
    assert await kept.all() == (new.kept,)
    secret = new.text.rpartition("_")[2]
    assert secret.encode() not in (await stored(store))[new.kept.id]


async def test_a_revoked_key_ends_at_once(kept: ApiKeyStore, keys: ApiKeys) -> None:
    new = await made(kept)
    assert await keys.check(new.text)

    ended = await kept.revoke(new.kept.id, "cli/ben")

    assert await keys.check(new.text) is None
    assert ended not in {None, "removed"}
    assert await kept.revoke(new.kept.id, "cli/ben") is None
    assert await kept.revoke("0" * 16, "cli/ben") is None


async def test_a_key_that_was_valid_expires(kept: ApiKeyStore) -> None:
    new = await made(kept, lives=timedelta(hours=1))
    passed = timedelta()

    async def find(key_id: str) -> FoundKey | None:
        found = await kept.find(key_id)
        return found and FoundKey(found.key, found.now + passed)

    keys = ApiKeys(SEALS, find, kept.report)
    assert await keys.check(new.text)

    passed = timedelta(hours=1)

    assert await keys.check(new.text) is None


async def test_a_key_of_another_tenant_is_refused(store: Store, keys: ApiKeys) -> None:
    theirs = await made(ApiKeyStore(store, SEALS, tenant="acme"), tenant="acme")
    name = store.keys_of_tenant("acme").api_keys
    [(key_id, body)] = fields(await store.conn.command("HGETALL", name)).items()

    assert await keys.check(theirs.text) is None
    await put(store, key_id, body)
    assert await keys.check(theirs.text) is None


WIDER: list[dict[str, object]] = [
    {"agents": ["*"]},
    {"expires_at": "2099-01-01T00:00:00Z"},
    # Even without a change: the text differs from the sealed one.
    {},
]


@pytest.mark.parametrize("change", WIDER)
async def test_a_key_that_somebody_widened_is_refused_and_reported(
    store: Store, kept: ApiKeyStore, keys: ApiKeys, change: dict[str, object]
) -> None:
    new = await made(kept)
    seal, _, content = (await stored(store))[new.kept.id].partition(b" ")
    key = json.dumps({**json.loads(content), **change}).encode()
    await put(store, new.kept.id, seal + b" " + key)

    assert await keys.check(new.text) is None
    assert store.security.counts[SecurityKind.SEAL_WRONG] == 1
    assert await kept.refused() == (new.kept.id,)
    assert await kept.all() == ()


async def test_a_key_of_somebody_elses_secret_is_refused(
    kept: ApiKeyStore, keys: ApiKeys, store: Store
) -> None:
    forger = ApiKeyStore(store, OTHER_SEALS, tenant="default")
    new = await made(forger, seals=OTHER_SEALS)

    assert await keys.check(new.text) is None
    assert store.security.counts[SecurityKind.SEAL_WRONG] == 1
    assert await kept.revoke(new.kept.id, "cli/ana") == "removed"
    assert await stored(store) == {}


async def test_a_key_that_was_copied_to_another_id_is_refused(
    kept: ApiKeyStore, keys: ApiKeys, store: Store
) -> None:
    new, other = await made(kept), await made(kept, scopes=tuple(Scope))
    await put(store, new.kept.id, (await stored(store))[other.kept.id])

    assert await keys.check(new.text) is None
    assert store.security.counts[SecurityKind.SEAL_WRONG] == 1


@pytest.mark.parametrize("body", [b"", b"AAAA {}", b"\xff\xfe {}"])
async def test_anything_else_in_the_store_is_no_key(
    kept: ApiKeyStore, keys: ApiKeys, store: Store, body: bytes
) -> None:
    new = await made(kept)
    await put(store, new.kept.id, body)

    assert await keys.check(new.text) is None


async def test_a_revoked_key_that_is_put_back_stays_revoked(
    kept: ApiKeyStore, keys: ApiKeys, store: Store
) -> None:
    new = await made(kept)
    before = (await stored(store))[new.kept.id]
    await kept.revoke(new.kept.id, "cli/ana")
    assert await keys.check(new.text) is None

    await put(store, new.kept.id, before)

    assert await keys.check(new.text) is None
    assert store.security.counts[SecurityKind.REPLAYED] == 1


async def test_keys_stay_valid_while_the_secret_is_replaced(
    store: Store, kept: ApiKeyStore
) -> None:
    new = await made(kept)
    newer = ApiKeyStore(store, NEWER_SEALS, tenant="default")

    found = await ApiKeys(NEWER_SEALS, newer.find, newer.report).check(new.text)

    assert found == new.kept


async def test_making_and_revoking_a_key_is_audited(
    store: Store, kept: ApiKeyStore
) -> None:
    new = await made(kept)
    await kept.revoke(new.kept.id, "cli/ben")

    log = store.audit(store.keys_of_tenant("default"))
    revoked, created = [event async for event in log.newest(10)]
    assert (created.name, created.actor) == (EventName.API_KEY_CREATED, "cli/ana")
    assert (revoked.name, revoked.actor) == (EventName.API_KEY_REVOKED, "cli/ben")
    assert created.data["key"] == new.kept.id
    assert new.kept.hash not in created.model_dump_json()


async def test_a_key_with_a_wrong_secret_is_refused(
    kept: ApiKeyStore, keys: ApiKeys
) -> None:
    new = await made(kept)
    wrong = new.text[:-1] + ("0" if new.text[-1] != "0" else "1")

    assert await keys.check(wrong) is None
    assert await keys.check("tk_" + "0" * 16 + "_" + "0" * 64) is None
    assert await keys.check("x") is None


async def test_keys_that_ended_long_ago_are_forgotten(
    store: Store, kept: ApiKeyStore
) -> None:
    old = await made(kept, lives=-KEPT - timedelta(minutes=1))
    new = await made(kept)

    assert await kept.all() == (new.kept,)
    assert old.kept.id not in await stored(store)


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


def started(house: AuditHarness) -> ApiKeys:
    """Return the API keys of a gateway that has just started on the same folder."""
    house.store.audit_index = AuditIndex()
    house.store.audit_index.folder = house.store.tree_folder
    kept = ApiKeyStore(house.store, SEALS, tenant="default")
    return ApiKeys(SEALS, kept.find, kept.report)


async def revoked_and_put_back(house: AuditHarness) -> NewKey:
    kept = ApiKeyStore(house.store, SEALS, tenant="default")
    new = await made(kept)
    before = (await stored(house.store))[new.kept.id]
    await kept.revoke(new.kept.id, "cli/ana")
    await house.writer.tick(is_last=True)
    await put(house.store, new.kept.id, before)
    return new


async def test_a_revocation_that_stands_in_the_audit_log_outlives_a_restart(
    house: AuditHarness,
) -> None:
    new = await revoked_and_put_back(house)

    assert await started(house).check(new.text) is None
    assert house.store.security.counts[SecurityKind.REPLAYED] == 1


async def test_it_is_known_before_its_checkpoint_to_the_process_that_writes_the_log(
    house: AuditHarness,
) -> None:
    kept = ApiKeyStore(house.store, SEALS, tenant="default")
    new, other = await made(kept), await made(kept)
    before = (await stored(house.store))[new.kept.id]
    await kept.revoke(new.kept.id, "cli/ana")
    await house.writer.tick()
    await put(house.store, new.kept.id, before)

    keys = ApiKeys(SEALS, kept.find, kept.report)

    assert await keys.check(new.text) is None
    assert await keys.check(other.text) == other.kept


async def test_an_entry_that_somebody_invented_revokes_nothing(
    house: AuditHarness,
) -> None:
    kept = ApiKeyStore(house.store, SEALS, tenant="default")
    new = await made(kept)
    conn, keys = house.store.conn, house.keys
    forged = Event(
        name=EventName.API_KEY_REVOKED, tenant="default", data={"key": new.kept.id}
    )
    body, seal = parts_of(sealed_text(conn, keys, forged.model_dump_json()))
    # Words that name the event are no revocation, either.
    words = forged.with_(name=EventName.FREEZE_SET, reason="api_key.revoked")
    said, true = parts_of(sealed_text(conn, keys, words.model_dump_json()))
    at_ms = await conn.now_ms("")
    other = f"{seal[:-3]}{'AAA' if seal[-3:] != 'AAA' else 'BBB'}"
    for event, code in ((body, other), (said, true)):
        await conn.command("XADD", keys.audit, "*", "e", event, "at", at_ms, "s", code)
    await house.writer.tick(is_last=True)

    assert await started(house).check(new.text) == new.kept
