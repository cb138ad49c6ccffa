"""A revoked API key that is written back into the store stays revoked."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.gateway.api.api_keys import ApiKeys
from keyturn.gateway.approvals.events import Event, EventName, SecurityKind
from keyturn.gateway.store.audit.index import AuditIndex
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.sealing.event_seals import parts_of, sealed_text
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import NewKey
from tests.api.test_api_key_store import SEALS, made, put, stored
from tests.service.audit_harness import AuditHarness


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
