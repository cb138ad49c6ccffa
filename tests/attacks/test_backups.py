"""A backup that somebody changed is refused before anything is changed."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.trust.seals import Purpose, key_id_of
from tests.resume.test_restored import waits
from tests.stories.test_a_backup_is_restored import Operator, operator

pytestmark = pytest.mark.slow
__all__ = ["operator"]

FOREIGN = bytes(32)
Parts = dict[str, bytes]
Rows = list[list[object]]


def parts_of(file: Path) -> Parts:
    with tarfile.open(file) as archive:
        return {
            one.name: found.read()
            for one in archive
            if (found := archive.extractfile(one))
        }


def write(file: Path, parts: Parts, *more: tarfile.TarInfo) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member, io.BytesIO(bytes(member.size)))


def with_rows(change: Callable[[Rows], Rows]) -> Callable[[Parts], None]:
    def changed(parts: Parts) -> None:
        rows = [json.loads(line) for line in parts["store.jsonl"].splitlines()]
        lines = "\n".join(map(json.dumps, change(rows)))
        parts["store.jsonl"] = lines.encode()

    return changed


def with_fact(name: str, value: object) -> Callable[[Parts], None]:
    def changed(parts: Parts) -> None:
        facts = {**json.loads(parts["manifest.json"]), name: value}
        parts["manifest.json"] = json.dumps(facts).encode()

    return changed


def damaged(rows: Rows) -> Rows:
    """Damage the shortest value, in the middle of the others."""
    row = min(rows, key=lambda one: len(str(one[2])))
    row[2] = base64.b64encode(b"damaged").decode()
    return rows


CHANGES: dict[str, Callable[[Parts], None]] = {
    "a key of another tenant": with_rows(
        lambda rows: [*rows, ["tk:{other}:api-keys", 0, rows[0][2]]]
    ),
    "a key of no tenant": with_rows(lambda rows: [*rows, ["x", 0, rows[0][2]]]),
    "a key twice": with_rows(lambda rows: [*rows, rows[-1]]),
    "an end before 1970": with_rows(lambda rows: [[rows[0][0], -5, rows[0][2]]]),
    "an end that is a text": with_rows(lambda rows: [[rows[0][0], "x", rows[0][2]]]),
    "a row without a value": with_rows(lambda rows: [rows[0][:2]]),
    "a value that is no base64": with_rows(lambda rows: [[rows[0][0], 0, "%"]]),
    "no rows": with_rows(lambda _: []),
    "a damaged value": with_rows(damaged),
    "no store": lambda parts: parts.update({"store.jsonl": b""}),
    "a list for a manifest": lambda parts: parts.update({"manifest.json": b"[]"}),
    "a moment that is a text": with_fact("at_ms", "today"),
    "a moment after the year 9999": with_fact("at_ms", 10**18),
    "counters that are a number": with_fact("counters", 7),
    "a folder among the keys": lambda parts: parts.update({"keys/bot/a/b.json": b""}),
    "a program": lambda parts: parts.update({"agents.py": b"print()"}),
    "an absolute path": lambda parts: parts.update({"/tmp/keyturn-escaped": b""}),  # noqa: S108 - never written
    "a path to the parent": lambda parts: parts.update({"audit/../../x": b""}),
}


async def everything(operator: Operator) -> dict[str, bytes]:
    """Return all files except those of the store's server and the backup."""
    return {
        str(one): one.read_bytes()
        for one in operator.folder.rglob("*")
        if one.is_file()
        and "valkey" not in one.parts
        and one != operator.file
        and one.suffix != ".lock"
    }


async def nothing_changes(operator: Operator) -> str:
    before = await everything(operator)
    code, told = await operator("restore", str(operator.file), "--replace")
    assert code, told
    assert "Traceback" not in told
    assert await everything(operator) == before
    async with operator.gateway() as stack:
        assert await stack.states() == [ItemState.PENDING]
        [item] = await stack.items()
        assert not item.is_restored
    return told


@pytest.fixture
async def backed_up(operator: Operator) -> Operator:
    async with operator.gateway() as stack:
        await waits(stack)
    await operator.backs_up()
    return operator


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_backup_is_refused(backed_up: Operator, change: str) -> None:
    parts = parts_of(backed_up.file)
    CHANGES[change](parts)
    write(backed_up.file, parts)

    told = await nothing_changes(backed_up)

    assert "no complete backup" in told or "DUMP payload" in told


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
async def test_a_non_file_member_is_refused(backed_up: Operator, kind: bytes) -> None:
    parts = parts_of(backed_up.file)
    member = tarfile.TarInfo("secret.old.key")
    member.type, member.linkname = kind, "manifest.json"
    write(backed_up.file, parts, member)

    assert "no complete backup" in await nothing_changes(backed_up)


async def test_a_backup_cannot_bring_its_own_secret(backed_up: Operator) -> None:
    """Otherwise its author could forge every record in it."""
    parts = parts_of(backed_up.file)
    with_fact("sealed_by", key_id_of(FOREIGN, Purpose.RECORDS))(parts)
    parts |= {"secret.key": FOREIGN, "secret.old.key": FOREIGN}
    write(backed_up.file, parts)

    assert "another secret" in await nothing_changes(backed_up)


async def test_a_backup_cannot_add_a_signing_key(backed_up: Operator) -> None:
    [key] = (backed_up.folder / "keys" / "bot").glob("*.json")
    parts = parts_of(backed_up.file)
    parts["keys/bot/00000000.key.json"] = key.read_bytes()
    write(backed_up.file, parts)

    told = await backed_up.restores("--replace")

    assert [*key.parent.glob("*.json")] == [key]
    assert f"The signing keys in {str(backed_up.folder / 'keys')!r} are kept" in told


async def test_a_backup_brings_no_other_tenants_audit_log(backed_up: Operator) -> None:
    parts = parts_of(backed_up.file)
    parts["audit/other.checkpoints"] = b"forged"
    write(backed_up.file, parts)
    backed_up.loses("audit")

    await backed_up.restores("--replace")

    assert (backed_up.folder / "audit" / "default.checkpoints").exists()
    assert not (backed_up.folder / "audit" / "other.checkpoints").exists()
