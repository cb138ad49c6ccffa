"""The audit tree grows with the log: no fork, no gap, and never without a signature."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.events import EventName, SecurityKind
from keyturn.gateway.errors import NotConfirmed
from keyturn.gateway.service.report import audit_writing
from keyturn.gateway.service.report.audit_reading import forget_tree, verify_log_of
from keyturn.gateway.service.report.audit_writing import AuditWriter
from keyturn.gateway.store.audit import log as audit_log
from keyturn.gateway.store.audit.files import (
    Row,
    TreeFiles,
    read_segment,
    segments,
)
from keyturn.gateway.store.connection.connection import entries, fields, number
from keyturn.gateway.store.events.outbox import entry_id
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import leaf_hash
from keyturn.gateway.trust.key_folder import Keyring, Role
from tests.forked import Forked
from tests.service.audit_harness import AuditHarness
from tests.trust.proofs import root_of

DAY_MS = 86_400_000


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


async def rows(house: AuditHarness) -> list[Row]:
    return [row async for row in house.store.audit(house.keys).rows()]


async def assert_whole(house: AuditHarness) -> None:
    """Assert that the tree is exactly that of the log, at each of its checkpoints."""
    records = list(house.files.records())
    expected = [
        leaf_hash(row._replace(state=record.state).opened_leaf.text)
        for row, record in zip(await rows(house), records, strict=True)
    ]
    assert [record.leaf for record in records] == expected
    sizes = [one.size for one in house.checkpoints()]
    assert sizes == sorted(set(sizes))
    for one in house.checkpoints():
        assert one.root == root_of(expected[: one.size])
    assert sizes[-1:] == [len(records)]


async def test_checkpoints_follow_a_minute_or_100_entries(house: AuditHarness) -> None:
    await house.put(3)
    await house.writer.tick()
    await house.put(2)
    await house.writer.tick()
    early = len(house.files.notes())
    house.clock.now += 61

    await house.writer.tick()
    await house.writer.tick()
    await house.put(99)
    await house.writer.tick()
    before = len(house.files.notes())
    await house.put(1)
    await house.writer.tick()

    assert (early, before) == (1, 2)
    assert [one.size for one in house.checkpoints()] == [3, 5, 105]
    await assert_whole(house)


async def test_two_processes_write_one_log_in_turn(house: AuditHarness) -> None:
    other = house.another()
    for _ in range(4):
        await house.put(40)
        await house.writer.tick()
        await house.put(40)
        await asyncio.gather(other.tick(), house.writer.tick(), other.tick())

    await other.tick(is_last=True)
    await house.writer.tick(is_last=True)

    await assert_whole(house)


async def test_a_paused_writer_keeps_others_off_the_files(house: AuditHarness) -> None:
    await house.put(10)
    with house.files.locked("paused") as was_last:
        await house.writer.tick(is_last=True)
        assert was_last is False
        assert house.files.notes() == []

    await house.writer.tick(is_last=True)

    await assert_whole(house)


async def test_what_no_replica_has_is_not_signed(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(key: str) -> None:
        raise NotConfirmed

    await house.put(10)
    with monkeypatch.context() as without_replicas:
        without_replicas.setattr(house.store.conn, "confirm", refuse)
        with pytest.raises(NotConfirmed):
            await house.writer.tick(is_last=True)
    assert house.files.notes() == []

    await house.writer.tick(is_last=True)
    await assert_whole(house)


async def test_entries_leave_the_store_only_behind_a_checkpoint(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def length() -> int:
        return number(await house.store.conn.command("XLEN", house.keys.audit))

    await house.put(1, age_ms=501 * DAY_MS)
    await house.writer.tick()
    await house.put(1000, age_ms=500 * DAY_MS)
    with monkeypatch.context() as unsigned:
        unsigned.setattr(audit_writing, "CHECKPOINT_ENTRIES", 9e9)
        await house.writer.tick()
    kept = await length()
    house.clock.now += 61

    await house.writer.tick()

    assert kept >= 1000
    assert [one.size for one in house.checkpoints()] == [1, 1001]
    assert await length() < 200


async def test_an_entry_changed_later_is_read_as_it_was(house: AuditHarness) -> None:
    await house.put(5)
    await house.writer.tick(is_last=True)
    conn, key = house.store.conn, house.keys.audit
    before = await rows(house)
    await conn.command("DEL", key)
    for row in before:
        event = row.event.replace("item.rejected", "item.executed")
        values = ["e", event, "at", row.at, "s", row.seal]
        await conn.command("XADD", key, row.seq, *values)

    assert await rows(house) == before
    await assert_whole(house)


async def test_a_strangers_entry_is_reported_and_kept(house: AuditHarness) -> None:
    await house.put(2, sealed=False)
    await house.writer.tick()
    await asyncio.sleep(0.002)
    await house.put(1)
    await house.put(1, sealed=False)
    conn, key = house.store.conn, house.keys.audit
    await conn.command("XADD", key, "*", "e", "{}", "at", "1", "s", "1.a.b")

    await house.writer.tick()
    await house.writer.tick(is_last=True)

    states = Counter(one.state for one in house.files.records())
    del states[SealState.SEALED]
    assert states == {SealState.UNSEALED: 3, SealState.FORGED: 1}
    assert house.store.security.counts == {SecurityKind.SEAL_WRONG: 4}
    await assert_whole(house)


@pytest.mark.parametrize("how", ["XDEL", "XTRIM", "DEL"])
async def test_a_deleted_entry_is_reported(house: AuditHarness, how: str) -> None:
    conn, key = house.store.conn, house.keys.audit
    await house.put(2)
    await house.writer.tick(is_last=True)
    assert house.store.security.counts == {}
    await house.put(1)
    ((last, _),) = cast(
        "list[tuple[bytes, object]]",
        await conn.command("XREVRANGE", key, "+", "-", "COUNT", 1),
    )
    which: dict[str, list[bytes | str | int]] = {"XDEL": [last], "XTRIM": ["MAXLEN", 0]}
    await conn.command(how, key, *which.get(how, []))
    await asyncio.sleep(0.002)
    await house.put(1)

    await house.writer.tick(is_last=True)

    assert house.store.security.counts == {SecurityKind.SEAL_WRONG: 1}


async def test_a_writer_that_is_cancelled_while_it_writes_files_repeats_no_entry(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.put(20)
    await house.writer.tick(is_last=True)
    begun, may_go_on, done = (threading.Event() for _ in range(3))
    write = TreeFiles.write_checkpoint

    def waiting(files: TreeFiles, note: str) -> None:
        begun.set()
        may_go_on.wait()
        write(files, note)
        done.set()

    monkeypatch.setattr(TreeFiles, "write_checkpoint", waiting)
    await house.put(5)
    writing = asyncio.create_task(house.writer.tick(is_last=True))
    await asyncio.to_thread(begun.wait)
    writing.cancel()
    await asyncio.wait([writing])
    may_go_on.set()
    await asyncio.to_thread(done.wait)

    await house.put(1)
    await house.writer.tick(is_last=True)

    found = await verify_log_of(house.store, house.keys.tenant)
    assert (found.problems, found.entries) == ([], 26)


@pytest.mark.parametrize("lost", ["tree", "older"])
async def test_files_survive_a_lost_tree(house: AuditHarness, lost: str) -> None:
    files, copy = house.files, house.folder / "copy"
    await house.put(100)
    await house.writer.tick()
    shutil.copytree(files.folder, copy)
    await house.put(1_200)
    await house.writer.tick(is_last=True)
    kept = {one: one.read_bytes() for one in files.folder.glob("*.jsonl.gz")}
    for path in (files.tree_path, files.checkpoints_path):
        path.unlink()
        if lost == "older":
            shutil.copy(copy / path.name, path)
    await forget_tree(house.store, house.keys.tenant)

    await house.another().tick(is_last=True)

    assert {one: one.read_bytes() for one in kept} == kept
    assert house.store.security.counts[SecurityKind.STALLED] == 1


def _flipped(files: TreeFiles, _: Path) -> None:
    body = bytearray(files.tree_path.read_bytes())
    body[150 * 49 + 20] ^= 1
    files.tree_path.write_bytes(body)


def _older(files: TreeFiles, copy: Path) -> None:
    shutil.rmtree(files.folder)
    shutil.copytree(copy, files.folder)


LOSSES: dict[str, Callable[[TreeFiles, Path], None]] = {
    "half of the tree": lambda files, _: os.truncate(files.tree_path, 150 * 49),
    "the checkpoints": lambda files, _: files.checkpoints_path.unlink(),
    "the newest": _older,
    "all of it": lambda files, _: shutil.rmtree(files.folder),
    "a bit": _flipped,
}


@pytest.mark.parametrize("lost", LOSSES)
async def test_a_tree_that_is_not_the_newest_is_not_continued(
    house: AuditHarness, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    files, copy = house.files, house.folder / "copy"
    await house.put(100)
    await house.writer.tick()
    shutil.copytree(files.folder, copy)
    await house.put(100)
    await house.writer.tick()
    LOSSES[lost](files, copy)
    before = files.notes()
    await house.put(100)

    await house.another().tick(is_last=True)

    assert "audit.not_written" in caplog.text
    assert files.notes() == before


async def noted(house: AuditHarness) -> dict[str, bytes]:
    return fields(await house.store.conn.command("HGETALL", house.keys.audit_tree))


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("value", ["0", "9999999999999-0", "9" * 5000])
@pytest.mark.parametrize("field", ["origin", "size", "root", "last", "moved"])
async def test_no_field_that_anybody_can_write_stops_or_drops_entries_unsaid(
    house: AuditHarness, field: str, value: str, *, is_running: bool
) -> None:
    house.store.audit_folder = house.store.tree_folder
    await house.put(5, age_ms=DAY_MS)
    await house.writer.tick(is_last=True)
    house.clock.now += 61
    await house.writer.tick()
    conn = house.store.conn
    await conn.command("HSET", house.keys.audit_tree, field, value)
    await house.put(250)
    before = entries(await conn.command("XRANGE", house.keys.audit, "-", "+"))
    found = await verify_log_of(house.store, "default")

    writer = house.writer if is_running else house.another()
    for _ in range(2):
        house.clock.now += 61
        await writer.tick(is_last=True)

    left = entries(await conn.command("XRANGE", house.keys.audit, "-", "+"))
    kept = {one.id for one in left}
    for segment in segments(house.files):
        kept |= {row.seq for row in read_segment(house.files, segment)}
    assert kept >= {one.id for one in before}
    is_told = house.store.security.counts.total() > 0
    assert is_told or house.checkpoints()[-1].size == 255
    # It only says that entries leave the store.
    assert is_told or field == "moved"
    assert found.problems or field == "moved"


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_lost_note_is_renewed(house: AuditHarness, *, is_running: bool) -> None:
    await house.put(100)
    await house.writer.tick()
    origin = (await noted(house))["origin"]
    await house.store.conn.command("DEL", house.keys.audit_tree)
    await house.put(1)

    await (house.writer if is_running else house.another()).tick()

    # Not only with the next checkpoint: another machine could begin another tree.
    assert (await noted(house))["origin"] == origin
    assert house.store.security.counts == {SecurityKind.SEAL_WRONG: 1}
    await house.writer.tick(is_last=True)
    await assert_whole(house)


async def test_a_second_tree_is_reported(house: AuditHarness, tmp_path: Path) -> None:
    await house.put(100)
    await house.writer.tick()
    await house.store.conn.command("DEL", house.keys.audit_tree)
    own, house.store.tree_folder = house.store.tree_folder, tmp_path / "other"
    await house.another().tick(is_last=True)
    assert house.store.security.counts == {}
    house.store.tree_folder = own
    await house.put(1)

    await house.writer.tick(is_last=True)

    assert house.store.security.counts == {SecurityKind.STALLED: 1}
    assert [one.size for one in house.checkpoints()] == [100]


async def test_an_older_store_goes_on_behind_the_tree(house: AuditHarness) -> None:
    await house.put(100)
    await house.writer.tick()
    conn, keys = house.store.conn, house.keys
    before = await noted(house)
    await house.put(100)
    await house.writer.tick()
    # As a copy from before the second hundred has it.
    after = entry_id(before["last"].decode())
    late = [row.seq async for row in house.store.audit(keys).live(after)]
    await conn.command("XDEL", keys.audit, *late)
    await conn.command("DEL", keys.audit_tree)
    for name, value in before.items():
        await conn.command("HSET", keys.audit_tree, name, value)
    await house.put(5)

    await house.another().tick(is_last=True)

    assert [one.size for one in house.checkpoints()] == [100, 200, 205]
    # What the copy lacks is in the files.
    assert len(await rows(house)) == 205
    await assert_whole(house)


def writer_ended(*words: str) -> tuple[int, str]:
    """Run a writer to its end; return its exit code and its output."""
    writer = Forked("tests.service.audit_writer_process", *words, merged=True)
    told = writer.stdout.read()
    return writer.wait(), told


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
async def test_a_killed_writer_leaves_no_gap(house: AuditHarness, part: int) -> None:
    place = (house.store.conn.url, str(house.folder))
    lease = house.keys.lease("", "audit")
    step, killed = part, 0
    while True:
        await house.put(120)
        ended, told = await asyncio.to_thread(writer_ended, *place, str(step))
        # The lease of the dead one ends by itself; here no test waits for it.
        await house.store.conn.command("DEL", lease)
        if ended == os.EX_OK:
            break
        assert ended == -signal.SIGKILL, told
        killed += 1
        step += 4
        before = house.checkpoints() if house.files.origin() else []
        await house.another().tick(is_last=True)
        await house.store.conn.command("DEL", lease)
        await assert_whole(house)
        assert house.checkpoints()[: len(before)] == before

    await assert_whole(house)
    assert killed > 1


# A tree that cannot be written any more is reported, for any reason.


async def test_a_folder_that_is_gone_is_an_alarm_once_nobody_signs(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.put(100)
    await house.writer.tick()
    shutil.rmtree(house.files.folder)
    await house.put(1)
    # Another machine may have the tree, and sign.
    await house.writer.tick(is_last=True)
    assert house.store.security.counts == {}

    monkeypatch.setattr(audit_log, "OVERDUE_MS", -1)
    await house.writer.tick(is_last=True)
    await house.writer.tick(is_last=True)

    assert house.store.security.counts == {SecurityKind.STALLED: 1}


async def test_gateways_with_other_keys_log_each_once(house: AuditHarness) -> None:
    ours = house.store.keyring
    assert ours
    bots = Keyring(house.folder / "bots", makes=[Role.BOT])
    [bot] = bots.make_missing(datetime(2026, 1, 1, tzinfo=UTC))
    twice = [bot.text, bot.text]
    writers = list[AuditWriter]()
    for known in ({}, {Role.BOT: twice}, {Role.BOT: [bot.text]}):
        house.store.keyring = Keyring(ours.folder, makes=Role, known=known)
        writers.append(AuditWriter(house.store, house.keys, clock=house.clock))

    for _ in range(3):
        for writer in writers:
            await writer.tick(is_last=True)

    names = [event.name async for event in house.store.audit(house.keys).entries()]
    assert names == [EventName.KEYS_CHANGED] * 2
