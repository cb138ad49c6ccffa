"""The audit log leaves the store into files, and no entry is lost or doubled."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import AuditUnreadable, SettingsError
from keyturn.gateway.service.report import audit_writing
from keyturn.gateway.service.report.audit_reading import verify_log_of
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.audit import log as audit_log
from keyturn.gateway.store.audit.files import Row, segment_path, segments
from keyturn.gateway.store.audit.log import AuditIndex, row_of
from keyturn.gateway.store.connection.connection import Argument, entries, number
from keyturn.gateway.store.keys import Keys, keys_of_tenant
from keyturn.gateway.store.sealing.event_seals import (
    nonce_of,
    read_seal,
    sealed_text,
    sealed_texts,
)
from keyturn.gateway.store.store import Store
from tests.api.test_api_key_store import Box
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, ServiceHarness

DAY_MS = 86_400_000
NAMES = [f"ap_default_{index:032x}" for index in range(2000)]


@pytest.fixture
def house(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AuditHarness:
    """Return a log with segments of few entries."""
    monkeypatch.setattr(audit_writing, "SEGMENT", 400)
    monkeypatch.setattr(audit_log, "_PAGE", 70)
    found = AuditHarness(store, tmp_path)
    store.audit_folder = store.tree_folder
    return found


def paths(house: AuditHarness) -> list[Path]:
    return [segment_path(house.files, one.start) for one in segments(house.files)]


async def write(
    house: AuditHarness, names: list[str], *, age_ms: int = 2 * 3_600_000
) -> None:
    """Write entries with an earlier time, each about an approval."""
    conn, keys = house.store.conn, house.keys
    at_ms = await conn.now_ms("") - age_ms
    rows: list[list[Argument]] = []
    for name in names:
        event = Event(name=EventName.APPROVAL_OPENED, tenant="default", approval=name)
        body, seal = sealed_text(conn, keys, event.model_dump_json()).split("\n")
        row: list[Argument] = ["XADD", keys.audit, f"{at_ms}-*", "e", body]
        rows.append([*row, "at", at_ms, "s", seal])
    await conn.transaction(*rows)


async def listed(house: AuditHarness) -> list[str]:
    return await names_of(house.store.audit(house.keys).entries())


async def names_of(entries: AsyncGenerator[Event]) -> list[str]:
    return [event.approval async for event in entries]


async def length(house: AuditHarness) -> int:
    return number(await house.store.conn.command("XLEN", house.keys.audit))


async def move(house: AuditHarness) -> None:
    house.clock.now += 61
    await house.writer.tick(is_last=True)


async def test_entries_in_files_leave_the_store(house: AuditHarness) -> None:
    await write(house, NAMES[:1000])
    log = house.store.audit(house.keys)
    whole = [event async for event in log.entries()]

    await move(house)
    await write(house, NAMES[1000:1100], age_ms=0)

    assert segments(house.files) == [(0, 400), (400, 800), (800, 1000)]
    assert await length(house) < 300
    now = [event async for event in log.entries()]
    assert now[:1000] == whole
    assert [one.approval for one in now] == NAMES[:1100]
    assert await names_of(log.newest(5000)) == NAMES[:1100][::-1]
    assert await names_of(log.newest(350)) == NAMES[:1100][::-1][:350]
    # From the middle of a segment on, and up to a time.
    assert await names_of(log.entries(after=whole[599].seq)) == NAMES[600:1100]
    since_ms = await house.store.conn.now_ms("") - 3_600_000
    assert await names_of(log.entries(since_ms=since_ms)) == NAMES[1000:1100]
    assert await names_of(log.entries(until_ms=since_ms)) == NAMES[:1000]
    assert await log.end() == now[-1].seq


async def test_moving_the_log_misses_and_doubles_nothing(house: AuditHarness) -> None:
    await write(house, NAMES[:1500])
    log = house.store.audit(house.keys)
    forward, back = list[str](), list[str]()

    async def in_parts(entries: AsyncGenerator[Event], to: list[str]) -> None:
        async for event in entries:
            to.append(event.approval)
            # A segment between two entries, again and again.
            if len(to) % 190 == 0:
                await move(house)

    await in_parts(log.newest(5000), back)
    await write(house, NAMES[1500:], age_ms=3_600_001)
    await in_parts(log.entries(), forward)

    assert back == NAMES[:1500][::-1]
    assert forward == NAMES


async def test_without_a_folder_entries_stay_in_the_store(house: AuditHarness) -> None:
    house.store.audit_folder = None
    await write(house, NAMES[:1000])

    await move(house)

    assert len(segments(house.files)) == 3
    assert await length(house) == 1000
    assert await listed(house) == NAMES[:1000]
    # As on another machine, which has none of the files.
    house.store.tree_folder = None
    assert await listed(house) == NAMES[:1000]


async def test_each_byte_of_what_nobody_can_read_is_kept(house: AuditHarness) -> None:
    await write(house, NAMES[:1])
    conn, audit = house.store.conn, house.keys.audit
    await conn.command("XADD", audit, "*", "e", b"\xff\xfe{", "at", "x")
    await move(house)

    with gzip.open(paths(house)[0]) as file:
        _, junk, *_ = file.read().splitlines()

    assert json.loads(junk)[2].encode("utf-8", "surrogateescape") == b"\xff\xfe{"
    assert (await listed(house))[0] == NAMES[0]


@pytest.mark.parametrize("how", ["missing", "changed", "exchanged", "cut"])
async def test_a_changed_segment_is_an_error(house: AuditHarness, how: str) -> None:
    await write(house, NAMES[:1300])
    await move(house)
    other, path, *_ = paths(house)
    body = gzip.decompress(path.read_bytes())
    match how:
        case "missing":
            path.unlink()
        case "changed":
            path.write_bytes(gzip.compress(body.replace(NAMES[500].encode(), b"ap_x")))
        case "exchanged":
            path.write_bytes(other.read_bytes())
        case _:
            lines = body.splitlines(keepends=True)
            path.write_bytes(gzip.compress(b"".join(lines[:-1])))

    with pytest.raises(AuditUnreadable, match=r"default-000000000(400|799).*copy"):
        await listed(house)


async def test_a_missing_folder_is_an_error(house: AuditHarness) -> None:
    await write(house, NAMES[:900])
    await move(house)
    house.store.tree_folder = house.folder / "other"

    with pytest.raises(AuditUnreadable, match="set 'audit_folder'"):
        await listed(house)
    house.store.tree_folder = None
    with pytest.raises(AuditUnreadable, match="set 'audit_folder'"):
        await names_of(house.store.audit(house.keys).newest(5000))


async def test_expired_segments_are_removed_whole(house: AuditHarness) -> None:
    store = house.store
    for days, names in (
        (500, NAMES[:400]),
        (450, NAMES[400:800]),
        (3, NAMES[800:1200]),
    ):
        await write(house, names, age_ms=days * DAY_MS)
    store.audit_kept = timedelta(days=1000)
    await move(house)
    assert len(segments(house.files)) == 3
    reading = store.audit(house.keys).entries()
    seen = [(await anext(reading)).approval for _ in range(10)]

    store.audit_kept = timedelta(days=400)
    await write(house, NAMES[1200:1210], age_ms=0)
    await move(house)

    assert segments(house.files) == [(800, 1200), (1200, 1210)]
    assert await listed(house) == NAMES[800:1210]
    assert (await verify_log_of(store, "default")).problems == []
    # A reader in the middle of it continues after the removed part, without an error.
    assert (seen + await names_of(reading))[-410:] == NAMES[800:1210]


async def test_no_segment_is_written_behind_one_that_is_lost(
    house: AuditHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await write(house, NAMES[:400])
    await move(house)
    [path] = paths(house)
    path.rename(path.with_suffix(".moved"))
    await write(house, NAMES[400:800], age_ms=3_600_001)

    await house.another().tick(is_last=True)

    assert "entry 0 is missing" in caplog.text
    assert not list(house.files.folder.glob("*.gz"))
    path.with_suffix(".moved").rename(path)
    assert (await listed(house))[:800] == NAMES[:800]


@pytest.mark.parametrize("how", ["half a write", "entries too many", "another file"])
async def test_an_unsigned_tail_is_read_again(house: AuditHarness, how: str) -> None:
    await write(house, NAMES[:900])
    await move(house)
    last = paths(house)[-1]
    body, path = last.read_bytes(), last
    if how == "half a write":
        body += body[: len(body) // 2]
    elif how == "entries too many":
        body += body
    else:
        path = segment_path(house.files, 900)
    path.write_bytes(body)
    await write(house, NAMES[900:1000], age_ms=3_600_001)

    assert (await listed(house))[:900] == NAMES[:900]
    house.clock.now += 61
    await house.another().tick(is_last=True)

    assert await listed(house) == NAMES[:1000]
    assert (await verify_log_of(house.store, "default")).problems == []


# A process that has just started knows which keys the audit log has as revoked.


def is_revoked(house: AuditHarness, *key_ids: str) -> list[bool]:
    """Return what a process finds that has just started."""
    index = AuditIndex()
    index.folder = house.files.folder
    return [index.is_revoked("default", one) for one in key_ids]


async def revoked(house: AuditHarness) -> str:
    new, _ = await Box(house.store).revoked()
    await house.writer.tick(is_last=True)
    return new.kept.id


@pytest.mark.parametrize("how", ["lost", "cut off"])
async def test_a_lost_index_is_written_again(house: AuditHarness, how: str) -> None:
    first = await revoked(house)
    path = house.files.folder / f"{house.keys.tenant}.facts.jsonl"
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b'["api_key def')
    await house.another().tick()

    second = await revoked(house)

    assert is_revoked(house, first, second) == [True, True]


# The audit log is kept for a time, and then dropped in bounded steps.


async def test_old_entries_are_dropped_without_a_folder_too(store: Store) -> None:
    conn, key = store.conn, store.keys_of_tenant("default").audit
    now_ms = await conn.now_ms("")
    for age in (500, 450, 399, 10, 0):
        at_ms = now_ms - age * DAY_MS
        rows = (["XADD", key, f"{at_ms}-{n}", "e", "{}"] for n in range(1, 201))
        await conn.transaction(*rows)

    await Sweeper(store).sweep()

    left = entries(await conn.command("XRANGE", key, "-", "+"))
    ages = {(now_ms - int(one.id.partition("-")[0])) // DAY_MS for one in left}
    assert ages == {399, 10, 0}


@pytest.mark.parametrize("text", ["29d", "1h", "400", "0d", "ever", "-30d"])
def test_what_is_no_time_to_keep_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keyturn.yml"
    file.write_text(f"retention: {{audit: {text}}}")

    with pytest.raises(SettingsError, match=r"retention.*(30d or more|write 400d)"):
        Settings.load(file, {})


# The seal of an audit entry proves that one of our processes wrote it.

EVENT = Event(name=EventName.FREEZE_SET, tenant="default", approval="ap_default_1")


async def stream(store: Store, keys: Keys) -> list[Row]:
    found = await store.conn.command("XRANGE", keys.audit, "-", "+")
    return [row_of(store.conn, keys, entry) for entry in entries(found)]


async def states(store: Store) -> set[SealState]:
    keys = store.keys_of_tenant("default")
    rows = await stream(store, keys)
    return {read_seal(store.conn, keys, one.event, one.seal) for one in rows}


async def test_each_entry_of_a_decision_has_a_seal(harness: ServiceHarness) -> None:
    click, _ = await harness.refund(899, thread="t1")
    await harness.reviews.decide(click, Approve(), ANA)
    click, _ = await harness.refund(12, thread="t2")
    await harness.reviews.decide(click, Reject(reason="no"), ANA)

    rows = await stream(harness.store, harness.keys)

    assert await states(harness.store) == {SealState.SEALED}
    assert len({nonce_of(one.seal) for one in rows}) == len(rows) >= 4


async def test_a_seal_is_of_its_entry_tenant_and_secret(store: Store) -> None:
    keys = store.keys_of_tenant("default")
    [text] = sealed_texts(store.conn, keys, [EVENT])
    event, seal = text.split("\n")
    other = event.replace("freeze.set", "freeze.lifted")
    nonce, code = seal.split(".")
    _, unlike = sealed_texts(store.conn, keys, [EVENT])[0].split("\n")

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
