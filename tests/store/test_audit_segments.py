"""The audit log leaves the store into sealed files, and no entry is lost or doubled."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.forked import Forked
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.config import Settings
from twokey.gateway.errors import AuditUnreadable, NotConfirmed
from twokey.gateway.service import sealing
from twokey.gateway.service.sealing import seal
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.store import audit_log, audit_segments
from twokey.gateway.store.audit_segments import read_header, segment_path
from twokey.gateway.store.connection import Argument, number
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

DAY_MS = 86_400_000
NAMES = [f"ap_s0_{index:032x}" for index in range(2000)]


@pytest.fixture
def keys(store: Store) -> Keys:
    return store.keys_of_tenant("default")


@pytest.fixture
def folder(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the store a folder for segments of few entries."""
    monkeypatch.setattr(sealing, "SEGMENT", 400)
    monkeypatch.setattr(sealing, "_PAGE", 150)
    monkeypatch.setattr(audit_log, "_PAGE", 70)
    store.audit_folder = tmp_path / "audit"
    return store.audit_folder


async def write(
    store: Store, keys: Keys, names: list[str], *, age_ms: int = 2 * 3_600_000
) -> None:
    """Write entries as of some time ago, each about an approval."""
    at_ms = await store.conn.now_ms("") - age_ms
    rows: list[list[Argument]] = []
    for name in names:
        event = Event(name=EventName.APPROVAL_OPENED, tenant="default", approval=name)
        body = event.model_dump_json()
        rows.append(["XADD", keys.audit, f"{at_ms}-*", "e", body, "at", at_ms])
    await store.conn.transaction(*rows)


async def listed(entries: AsyncGenerator[Event]) -> list[str]:
    return [event.approval async for event in entries]


def files(folder: Path) -> list[str]:
    """Return the names of what is in a folder; none where it is not there."""
    return sorted(one.name for one in folder.glob("*"))


async def length(store: Store, keys: Keys) -> int:
    return number(await store.conn.command("XLEN", keys.audit))


async def sealed_all(store: Store, keys: Keys, folder: Path) -> None:
    """Seal until nothing is due."""
    before = -1
    while (found := (await store.audit(keys).sealed()).number) != before:
        before = found
        await seal(store, keys, folder)


async def test_what_no_replica_has_is_not_sealed(
    store: Store, keys: Keys, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(key: str) -> None:
        raise NotConfirmed

    await write(store, keys, NAMES[:400])
    with monkeypatch.context() as without_replicas:
        without_replicas.setattr(store.conn, "confirm", refuse)
        with pytest.raises(NotConfirmed):
            await seal(store, keys, folder)
    assert files(folder) == []

    await seal(store, keys, folder)
    assert await listed(store.audit(keys).entries()) == NAMES[:400]
    assert len(files(folder)) == 1


async def test_what_is_sealed_leaves_the_store_and_is_read_as_before(
    store: Store, keys: Keys, folder: Path
) -> None:
    await write(store, keys, NAMES[:1000])
    log = store.audit(keys)
    whole = [event async for event in log.entries()]

    await sealed_all(store, keys, folder)
    await write(store, keys, NAMES[1000:1100], age_ms=0)

    assert len(files(folder)) == 3
    assert await length(store, keys) < 300
    now = [event async for event in log.entries()]
    assert now[:1000] == whole
    assert [one.approval for one in now] == NAMES[:1100]
    assert await listed(log.newest(5000)) == NAMES[:1100][::-1]
    assert await listed(log.newest(350)) == NAMES[:1100][::-1][:350]
    # From the middle of a segment on, and up to a time.
    assert await listed(log.entries(after=whole[599].seq)) == NAMES[600:1100]
    since_ms = await store.conn.now_ms("") - 3_600_000
    assert await listed(log.entries(since_ms=since_ms)) == NAMES[1000:1100]
    assert await listed(log.entries(until_ms=since_ms)) == NAMES[:1000]
    assert await log.end() == now[-1].seq


async def test_a_reader_misses_and_doubles_nothing_while_the_log_is_sealed(
    store: Store, keys: Keys, folder: Path
) -> None:
    await write(store, keys, NAMES[:1500])
    log = store.audit(keys)
    forward, back = list[str](), list[str]()

    async def in_parts(entries: AsyncGenerator[Event], to: list[str]) -> None:
        async for event in entries:
            to.append(event.approval)
            # A segment between two entries, again and again.
            if len(to) % 190 == 0:
                await seal(store, keys, folder)

    await in_parts(log.newest(5000), back)
    await write(store, keys, NAMES[1500:], age_ms=3_600_001)
    await in_parts(log.entries(), forward)

    assert back == NAMES[:1500][::-1]
    assert forward == NAMES


async def test_a_log_that_is_short_and_young_stays_in_the_store(
    store: Store, keys: Keys, folder: Path
) -> None:
    await write(store, keys, NAMES[:300], age_ms=60_000)

    await seal(store, keys, folder)

    assert files(folder) == []
    assert await length(store, keys) == 300


async def test_each_byte_of_what_nobody_can_read_is_kept(
    store: Store, keys: Keys, folder: Path
) -> None:
    await write(store, keys, NAMES[:1])
    await store.conn.command("XADD", keys.audit, "*", "e", b"\xff\xfe{", "at", "x")
    await seal(store, keys, folder)

    with gzip.open(segment_path(folder, keys.shard, 1)) as file:
        _, _, junk = file.read().splitlines()

    assert json.loads(junk)[2].encode("utf-8", "surrogateescape") == b"\xff\xfe{"
    assert await listed(store.audit(keys).entries()) == NAMES[:1]


@pytest.mark.parametrize("how", ["missing", "changed", "exchanged", "cut", "header"])
async def test_a_segment_that_is_not_what_was_sealed_is_a_clear_error(
    store: Store, keys: Keys, folder: Path, how: str
) -> None:
    await write(store, keys, NAMES[:1300])
    await sealed_all(store, keys, folder)
    path, other = (segment_path(folder, keys.shard, one) for one in (2, 3))
    body = gzip.decompress(path.read_bytes())
    match how:
        case "missing":
            path.unlink()
        case "changed":
            path.write_bytes(gzip.compress(body.replace(NAMES[500].encode(), b"ap_x")))
        case "exchanged":
            path.write_bytes(other.read_bytes())
        case "cut":
            path.write_bytes(path.read_bytes()[:-500])
        case _:
            path.write_bytes(
                gzip.compress(body.replace(b'"entries":400', b'"entries":1'))
            )

    with pytest.raises(AuditUnreadable, match=f"{keys.shard}-00000002.jsonl.gz.*copy"):
        await listed(store.audit(keys).entries())


async def test_without_the_folder_what_is_sealed_is_an_error_and_no_silence(
    store: Store, keys: Keys, folder: Path
) -> None:
    await write(store, keys, NAMES[:900])
    await sealed_all(store, keys, folder)
    store.audit_folder = None

    with pytest.raises(AuditUnreadable, match="set 'audit_folder'"):
        await listed(store.audit(keys).entries())
    with pytest.raises(AuditUnreadable, match="set 'audit_folder'"):
        await listed(store.audit(keys).newest(5000))


async def test_whole_segments_are_removed_when_their_time_is_over(
    store: Store, keys: Keys, folder: Path
) -> None:
    for days, names in (
        (500, NAMES[:400]),
        (450, NAMES[400:800]),
        (3, NAMES[800:1200]),
    ):
        await write(store, keys, names, age_ms=days * DAY_MS)
    store.audit_kept = timedelta(days=1000)
    await sealed_all(store, keys, folder)
    assert len(files(folder)) == 3
    reading = store.audit(keys).entries()
    seen = [(await anext(reading)).approval for _ in range(10)]

    store.audit_kept = timedelta(days=400)
    await write(store, keys, NAMES[1200:1210], age_ms=0)
    await seal(store, keys, folder)

    assert files(folder) == [f"{keys.shard}-00000003.jsonl.gz"]
    assert await listed(store.audit(keys).entries()) == NAMES[800:1210]
    # Who was in the middle of it goes on behind what is gone, without an error.
    assert (seen + await listed(reading))[-410:] == NAMES[800:1210]


async def test_a_chain_goes_on_in_its_own_folder_alone(
    store: Store, keys: Keys, folder: Path, tmp_path: Path
) -> None:
    await write(store, keys, NAMES[:400])
    await seal(store, keys, folder)
    await write(store, keys, NAMES[400:800], age_ms=3_600_001)
    # Another machine with a folder of its own, or a disk that is not mounted.
    elsewhere = tmp_path / "elsewhere"

    with pytest.raises(AuditUnreadable, match="of the audit log is missing"):
        await seal(store, keys, elsewhere)

    assert files(elsewhere) == []
    assert await listed(store.audit(keys).entries()) == NAMES[:800]


async def test_a_sealer_that_was_paused_brings_no_removed_segment_back(
    store: Store, keys: Keys
) -> None:
    for first in (3, 2):
        await sealing.FORGET(store.conn, sealed=keys.audit_sealed, first=first)
    await sealing.SEAL(
        store.conn, sealed=keys.audit_sealed, number=1, last="1-1", digest="d"
    )
    late = await sealing.SEAL(
        store.conn, sealed=keys.audit_sealed, number=1, last="9-9", digest="e"
    )

    sealed = await store.audit(keys).sealed()
    assert late == [b"moved"]
    assert (sealed.first, sealed.number, sealed.last) == (3, 1, (1, 1))


async def test_of_two_sealers_at_once_one_seals(
    store: Store, keys: Keys, folder: Path
) -> None:
    await write(store, keys, NAMES[:1500])

    for _ in range(5):
        await asyncio.gather(*(seal(store, keys, folder) for _ in range(4)))

    assert await listed(store.audit(keys).entries()) == NAMES[:1500]
    assert not [name for name in files(folder) if name.endswith(".part")]


async def test_a_store_from_an_older_copy_overwrites_no_segment(
    store: Store,
    keys: Keys,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await write(store, keys, NAMES[:500])
    await sealed_all(store, keys, folder)
    path = segment_path(folder, keys.shard, 1)
    kept = path.read_bytes()
    # As a copy from before the sealing would have it, with other entries since.
    await store.conn.command("DEL", keys.audit_sealed, keys.audit)
    await write(store, keys, NAMES[600:1200])

    with pytest.raises(AuditUnreadable, match="restored from an older copy"):
        await seal(store, keys, folder)
    await Sweeper(store).sweep()

    assert "audit.not_sealed" in caplog.text
    assert path.read_bytes() == kept
    assert await listed(store.audit(keys).entries()) == NAMES[600:1200]


def left_half_written(folder: Path, *names: str) -> None:
    """Leave what a sealer that was killed leaves."""
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"half")


def rough(folder: Path) -> list[str]:
    """Return the files that are half written."""
    return [path.name for path in folder.glob("*.part")]


@pytest.mark.slow
@pytest.mark.parametrize("step", range(9))
async def test_a_sealer_that_is_killed_at_any_step_loses_and_doubles_nothing(
    store: Store, keys: Keys, folder: Path, step: int
) -> None:
    await write(store, keys, NAMES[:1000])
    words = (store.conn.url, str(folder), str(step))

    sealer = await asyncio.to_thread(Forked, "tests.store.audit_sealer", *words)
    ended = await asyncio.to_thread(sealer.wait)

    # The last steps come after the end: the child ran through.
    assert ended == (-signal.SIGKILL if step < 7 else os.EX_OK)
    log = store.audit(keys)
    assert await listed(log.entries()) == NAMES[:1000]
    # The lease of the dead one ends by itself; here nobody waits for it.
    await store.conn.command("DEL", keys.lease("", "", "audit"))
    await sealed_all(store, keys, folder)
    assert await listed(log.entries()) == NAMES[:1000]
    assert await listed(log.newest(5000)) == NAMES[:1000][::-1]
    assert await length(store, keys) < 300
    sealed = await log.sealed()
    assert read_header(folder, keys.shard, sealed.number + 1) is None
    await write(store, keys, NAMES[1000:1500])
    await sealed_all(store, keys, folder)
    assert rough(folder) == []


async def test_only_half_written_files_of_the_own_shard_are_removed(
    store: Store, keys: Keys, folder: Path
) -> None:
    other = "s10-00000001.jsonl.aa.part"
    left_half_written(folder, other, f"{keys.shard}-00000001.jsonl.aa.part")
    await write(store, keys, NAMES[:1000])

    await sealed_all(store, keys, folder)

    assert rough(folder) == [other]


async def test_a_sealer_whose_half_written_file_is_removed_loses_nothing(
    store: Store, keys: Keys, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused, and another one sealed meanwhile and cleared up."""
    await write(store, keys, NAMES[:1000])
    link = os.link

    def paused(rough: Path, path: Path) -> None:
        audit_segments.remove_rough(folder, keys.shard)
        link(rough, path)

    with monkeypatch.context() as late:
        late.setattr(os, "link", paused)
        with pytest.raises(FileNotFoundError):
            await seal(store, keys, folder)
    await sealed_all(store, keys, folder)

    assert await listed(store.audit(keys).entries()) == NAMES[:1000]


def test_the_settings_name_the_folder_from_the_file_on(tmp_path: Path) -> None:
    file = tmp_path / "twokey.yml"
    file.write_text("audit_folder: logs/audit")
    given = {"TWOKEY_AUDIT_FOLDER": "/var/audit"}

    assert Settings.load(file, {}).audit == (
        timedelta(days=400),
        tmp_path / "logs/audit",
    )
    assert Settings.load(file, given).audit_folder == Path("/var/audit")
    file.write_text("")
    assert Settings.load(file, {}).audit_folder is None
