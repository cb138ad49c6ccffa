"""A process that has just started knows which keys the audit log has as revoked."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.gateway.store.audit.index import AuditIndex
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.store import Store
from tests.api.test_api_key_store import SEALS, made
from tests.service.audit_harness import AuditHarness


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


def is_revoked(house: AuditHarness, *key_ids: str) -> list[bool]:
    """Return what a process finds that has just started."""
    index = AuditIndex()
    index.folder = house.files.folder
    return [index.is_revoked("default", one) for one in key_ids]


async def revoked(house: AuditHarness) -> str:
    kept = ApiKeyStore(house.store, SEALS, tenant="default")
    new = await made(kept)
    await kept.revoke(new.kept.id, "cli/ana")
    await house.writer.tick(is_last=True)
    return new.kept.id


async def test_what_was_revoked_is_known(house: AuditHarness) -> None:
    assert is_revoked(house, await revoked(house), "another") == [True, False]


@pytest.mark.parametrize("how", ["lost", "cut off"])
async def test_an_index_that_is_lost_or_cut_off_is_written_again(
    house: AuditHarness, how: str
) -> None:
    first = await revoked(house)
    path = house.files.folder / f"{house.keys.tenant}.facts.jsonl"
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b'["api_key def')
    await house.another().tick()

    second = await revoked(house)

    assert is_revoked(house, first, second) == [True, True]


async def test_what_somebody_else_wrote_revokes_nothing(house: AuditHarness) -> None:
    new = await made(ApiKeyStore(house.store, SEALS, tenant="default"))
    data = f'{{"key":"{new.kept.id}"}}'
    event = f'{{"name":"api_key.revoked","tenant":"default","data":{data}}}'
    seal = f"9.{'n' * 16}.{'c' * 22}"
    fields = ["e", event, "at", "1", "s", seal]
    await house.store.conn.command("XADD", house.keys.audit, "*", *fields)

    await house.writer.tick(is_last=True)

    assert is_revoked(house, new.kept.id) == [False]
