"""A stored API key is the gateway's, or it is refused and reported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from keyturn.gateway.api.api_keys import ApiKeys
from keyturn.gateway.approvals.events import Event, EventName, SecurityKind
from keyturn.gateway.protocol.http_api import Scope
from keyturn.gateway.store.audit.log import AuditIndex
from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.http.api_keys import KEPT, ApiKeyStore
from keyturn.gateway.store.sealing.event_seals import sealed_text
from keyturn.gateway.store.sealing.sealing import MARK
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.api_keys import ApiKey, NewKey
from keyturn.gateway.trust.seals import SEAL_BYTES
from tests.service.audit_harness import AuditHarness

OTHER_SECRET = b"b" * 32
SEAL = len(MARK) + SEAL_BYTES


@dataclass
class Box:
    """The API keys of a tenant, as they are stored and checked."""

    store: Store
    tenant: str = "default"

    def __post_init__(self) -> None:
        kept = self.kept = ApiKeyStore(self.store, tenant=self.tenant)
        self.check = ApiKeys(kept.seals, kept.find).check
        self.name = self.store.keys_of_tenant(self.tenant).api_keys

    async def made(
        self,
        *,
        lives: timedelta = timedelta(hours=1),
        scopes: tuple[Scope, ...] = (Scope.READ,),
    ) -> NewKey:
        may = {"name": "ci", "agents": ["support"], "scopes": scopes}
        return await self.kept.create("cli/ana", lives, **may)

    async def stored(self) -> dict[str, bytes]:
        return fields(await self.store.conn.command("HGETALL", self.name))

    async def put(self, key_id: str, body: bytes) -> None:
        await self.store.conn.command("HSET", self.name, key_id, body)

    async def revoked(self) -> tuple[NewKey, bytes]:
        """Return a key that is revoked, and what was stored of it before."""
        new = await self.made()
        before = (await self.stored())[new.kept.id]
        await self.kept.revoke(new.kept.id, "cli/ana")
        return new, before


@pytest.fixture
def box(store: Store) -> Box:
    return Box(store)


async def test_a_key_is_what_was_made(box: Box) -> None:
    new = await box.made()

    found = await box.check(new.text)

    assert found == new.kept
    assert await box.kept.all() == ((new.kept,), ())
    secret = new.text.rpartition("_")[2]
    assert secret.encode() not in (await box.stored())[new.kept.id]


async def test_a_revoked_key_ends_at_once(box: Box) -> None:
    new = await box.made()
    assert await box.check(new.text)

    ended = await box.kept.revoke(new.kept.id, "cli/ben")

    assert await box.check(new.text) is None
    assert ended not in {None, "removed"}
    assert await box.kept.revoke(new.kept.id, "cli/ben") is None
    assert await box.kept.revoke("0" * 16, "cli/ben") is None


async def test_a_key_that_was_valid_expires(box: Box) -> None:
    new = await box.made(lives=timedelta(hours=1))
    passed = timedelta()

    async def find(key_id: str) -> tuple[ApiKey, datetime] | None:
        found = await box.kept.find(key_id)
        return found and (found[0], found[1] + passed)

    keys = ApiKeys(box.kept.seals, find)
    assert await keys.check(new.text)

    passed = timedelta(hours=1)

    assert await keys.check(new.text) is None


async def test_a_key_of_another_tenant_is_refused(box: Box) -> None:
    acme = Box(box.store, tenant="acme")
    theirs = await acme.made()
    [(key_id, body)] = (await acme.stored()).items()

    assert await box.check(theirs.text) is None
    await box.put(key_id, body)
    assert await box.check(theirs.text) is None


WIDER: list[dict[str, object]] = [
    {"agents": ["*"]},
    {"expires_at": "2099-01-01T00:00:00Z"},
    # Even without a change: the text differs from the sealed one.
    {},
]


@pytest.mark.parametrize("change", WIDER)
async def test_a_widened_key_is_refused(box: Box, change: dict[str, object]) -> None:
    new = await box.made()
    stored = (await box.stored())[new.kept.id]
    seal, content = stored[:SEAL], stored[SEAL:]
    key = json.dumps({**json.loads(content), **change}).encode()
    await box.put(new.kept.id, seal + key)

    assert await box.check(new.text) is None
    assert box.store.security.counts[SecurityKind.SEAL_WRONG] == 1
    assert await box.kept.all() == ((), (new.kept.id,))


async def test_a_key_of_somebody_elses_secret_is_refused(box: Box) -> None:
    own, box.store.conn.secrets = box.store.conn.secrets, (OTHER_SECRET,)
    new = await Box(box.store).made()
    box.store.conn.secrets = own

    assert await box.check(new.text) is None
    assert box.store.security.counts[SecurityKind.SEAL_WRONG] == 1
    assert await box.kept.revoke(new.kept.id, "cli/ana") == "removed"
    assert await box.stored() == {}


async def test_a_key_that_was_copied_to_another_id_is_refused(box: Box) -> None:
    new, other = await box.made(), await box.made(scopes=tuple(Scope))
    await box.put(new.kept.id, (await box.stored())[other.kept.id])

    assert await box.check(new.text) is None
    assert box.store.security.counts[SecurityKind.SEAL_WRONG] == 1


@pytest.mark.parametrize("body", [b"", b"AAAA {}", b"\xff\xfe {}"])
async def test_anything_else_in_the_store_is_no_key(box: Box, body: bytes) -> None:
    new = await box.made()
    await box.put(new.kept.id, body)

    assert await box.check(new.text) is None


async def test_a_revoked_key_that_is_put_back_stays_revoked(box: Box) -> None:
    new, before = await box.revoked()
    assert await box.check(new.text) is None

    await box.put(new.kept.id, before)

    assert await box.check(new.text) is None
    assert box.store.security.counts[SecurityKind.REPLAYED] == 1


async def test_keys_stay_valid_while_the_secret_is_replaced(box: Box) -> None:
    new = await box.made()

    box.store.conn.secrets = (OTHER_SECRET, *box.store.conn.secrets)

    assert await Box(box.store).check(new.text) == new.kept


async def test_making_and_revoking_a_key_is_audited(box: Box) -> None:
    new = await box.made()
    await box.kept.revoke(new.kept.id, "cli/ben")

    log = box.store.audit(box.store.keys_of_tenant("default"))
    revoked, created = [event async for event in log.newest(10)]
    assert (created.name, created.actor) == (EventName.API_KEY_CREATED, "cli/ana")
    assert (revoked.name, revoked.actor) == (EventName.API_KEY_REVOKED, "cli/ben")
    assert created.data["key"] == new.kept.id
    assert new.kept.hash not in created.model_dump_json()


async def test_a_key_with_a_wrong_secret_is_refused(box: Box) -> None:
    new = await box.made()
    wrong = new.text[:-1] + ("0" if new.text[-1] != "0" else "1")

    assert await box.check(wrong) is None
    assert await box.check("tk_" + "0" * 16 + "_" + "0" * 64) is None
    assert await box.check("x") is None


async def test_keys_that_ended_long_ago_are_forgotten(box: Box) -> None:
    old = await box.made(lives=-KEPT - timedelta(minutes=1))
    new = await box.made()

    assert await box.kept.all() == ((new.kept,), ())
    assert old.kept.id not in await box.stored()


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


def started(house: AuditHarness) -> Box:
    """Return the API keys of a gateway that has just started on the same folder."""
    house.store.audit_index = AuditIndex()
    house.store.audit_index.folder = house.store.tree_folder
    return Box(house.store)


async def test_a_restart_keeps_revocations(house: AuditHarness, box: Box) -> None:
    new, before = await box.revoked()
    await house.writer.tick(is_last=True)
    await box.put(new.kept.id, before)

    assert await started(house).check(new.text) is None
    assert house.store.security.counts[SecurityKind.REPLAYED] == 1


async def test_its_writer_knows_it_at_once(house: AuditHarness, box: Box) -> None:
    other, (new, before) = await box.made(), await box.revoked()
    await house.writer.tick()
    await box.put(new.kept.id, before)

    fresh = Box(house.store)

    assert await fresh.check(new.text) is None
    assert await fresh.check(other.text) == other.kept


async def test_a_forged_entry_revokes_nothing(house: AuditHarness, box: Box) -> None:
    new = await box.made()
    conn, keys = house.store.conn, house.keys
    forged = Event(
        name=EventName.API_KEY_REVOKED, tenant="default", data={"key": new.kept.id}
    )
    body, seal = sealed_text(conn, keys, forged.model_dump_json()).split("\n")
    # Words that name the event are no revocation, either.
    words = forged.with_(name=EventName.FREEZE_SET, reason="api_key.revoked")
    said, true = sealed_text(conn, keys, words.model_dump_json()).split("\n")
    at_ms = await conn.now_ms("")
    other = f"{seal[:-3]}{'AAA' if seal[-3:] != 'AAA' else 'BBB'}"
    for event, code in ((body, other), (said, true)):
        await conn.command("XADD", keys.audit, "*", "e", event, "at", at_ms, "s", code)
    await house.writer.tick(is_last=True)

    assert await started(house).check(new.text) == new.kept
