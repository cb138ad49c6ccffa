"""A thousand changes of an audit log are noticed, and the first bad entry named."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from keyturn.gateway.service.report import audit_writing
from keyturn.gateway.service.report.audit_reading import verify_log_of
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.store.audit.files import (
    RECORD_BYTES,
    Segment,
    TreeFiles,
    erase,
    segment_path,
)
from keyturn.gateway.store.audit.log import TreeNote
from keyturn.gateway.store.audit.verifying import Verified, verify_log
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import Checkpoint
from keyturn.gateway.trust.key_folder import Role, SigningKey
from tests.levels import size
from tests.service.audit_harness import AuditHarness

SIZE, FIRST = 250, 100
"""Entries of the tree, and of its first checkpoint."""


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


Verify = Callable[..., Verified]


async def written(house: AuditHarness, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Write a log with three segments and three checkpoints; return its check."""
    monkeypatch.setattr(audit_writing, "SEGMENT", 100)
    for count in (100, 100, 50):
        await house.put(count)
        await house.writer.tick(is_last=True)
    assert house.store.keyring
    noted = await TreeNote.read(house.store.conn, house.keys)
    return partial(verify_log, house.files, public_keys(house.store.keyring), noted)


async def test_a_log_that_nobody_changed_verifies(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = await written(house, monkeypatch)

    found = verify()

    assert found.problems == []
    assert (found.entries, found.checkpoints, found.kept_from) == (SIZE, 3, 0)
    same = await verify_log_of(house.store, "default")
    assert same == found


async def test_what_no_checkpoint_covers_yet_is_told(house: AuditHarness) -> None:
    await house.put(100)
    await house.writer.tick()
    await house.put(5)
    await house.writer.tick()
    await house.put(2)

    found = await verify_log_of(house.store, "default")

    assert (found.entries, found.unsigned, found.problems) == (100, 7, [])


async def test_a_checkpoint_that_was_kept_elsewhere_shows_another_history(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = await written(house, monkeypatch)
    [first, *_] = house.files.notes()
    assert house.store.keyring
    key = house.store.keyring.signing(Role.AUDIT)
    forked = Checkpoint(house.checkpoints()[0].origin, 100, b"x" * 32).signed(key)

    assert verify(kept=[first]).problems == []
    assert verify(kept=[first, forked]).first_bad
    assert verify(kept=["junk"]).first_bad
    other = SigningKey.from_seed("keyturn/audit", bytes(32)).public
    found = verify_log(house.files, [other], TreeNote()).first_bad
    assert found
    assert found.index == 0


async def test_what_was_erased_leaves_the_log_verifiable(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = await written(house, monkeypatch)
    segment = Segment(0, 100)
    path = segment_path(house.files, 0)
    [first, *_] = gzip.decompress(path.read_bytes()).splitlines()
    seq = json.loads(first)[0]

    erase(house.files, segment, {seq})

    assert verify().problems == []
    [event] = [
        one async for one in house.store.audit(house.keys).entries() if one.seq == seq
    ]
    assert (event.actor, event.reason) == ("", "")
    assert event.approval
    assert b"U0ANA" not in gzip.decompress(path.read_bytes()).splitlines()[0]


async def test_where_only_hashes_are_kept_they_are_those_that_were_signed(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = await written(house, monkeypatch)
    for start in (0, 100, 200):
        segment_path(house.files, start).unlink()
    kept = partial(verify, oldest_ms=2**60)
    before = kept()
    body = bytearray(house.files.tree_path.read_bytes())
    body[130 * RECORD_BYTES + 20] ^= 1
    house.files.tree_path.write_bytes(body)

    found = kept()

    assert (before.problems, before.kept_from) == ([], SIZE)
    assert found.first_bad
    assert found.first_bad.index == FIRST
    assert "100 to 199" in found.first_bad.problem


async def test_what_is_not_kept_before_its_time_is_over_is_missing(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = await written(house, monkeypatch)

    segment_path(house.files, 0).unlink()
    found = verify()

    assert found.first_bad
    assert found.first_bad.index == 0


@dataclass
class Bench:
    """One log in files, to change and to put back."""

    files: TreeFiles
    folder: Path
    copy: Path
    random: random.Random
    first_bad: int = 0

    def reset(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)

    def records(self) -> list[bytes]:
        body = self.files.tree_path.read_bytes()
        return [
            body[at : at + RECORD_BYTES] for at in range(0, len(body), RECORD_BYTES)
        ]

    def keep(self, records: list[bytes]) -> None:
        self.files.tree_path.write_bytes(b"".join(records))

    def keep_notes(self, notes: list[str]) -> None:
        text_ = "".join(f"{each}\n" for each in notes)
        self.files.checkpoints_path.write_text(text_)

    def flipped(self, body: bytes) -> bytes:
        """Return bytes of which one bit is another; a last line break stays."""
        changed = bytearray(body)
        changed[self.random.randrange(len(body) - 1)] ^= 1 << self.random.randrange(7)
        return bytes(changed)

    @contextmanager
    def segment(self) -> Generator[tuple[list[bytes], int]]:
        """Give the lines of one of the first segments, and the place of one of them."""
        start = 100 * self.random.randrange(2)
        path = segment_path(self.files, start)
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        self.first_bad = start + (line := self.random.randrange(len(lines)))
        yield lines, line
        path.write_bytes(gzip.compress(b"".join(lines)))


Change = Callable[[Bench], range]
"""Changes a log; returns where the first bad entry is."""


def exactly(index: int) -> range:
    return range(index, index + 1)


def signed_before(index: int, last: int | None = None) -> range:
    """Return from where on nothing counts where a signature covers an entry."""
    start = 0 if index < FIRST else 100 if index < 200 else 200
    return range(start, (index if last is None else last) + 1)


def flip_tree(bench: Bench) -> range:
    records, index = bench.records(), bench.random.randrange(SIZE)
    records[index] = bench.flipped(records[index])
    bench.keep(records)
    # Its place may be that of a later one then, or of one before.
    return signed_before(index, min(index + 1, SIZE - 1))


def delete_record(bench: Bench) -> range:
    records, index = bench.records(), bench.random.randrange(SIZE)
    del records[index]
    bench.keep(records)
    return signed_before(index)


def insert_record(bench: Bench) -> range:
    records, index = bench.records(), bench.random.randrange(SIZE)
    records.insert(index, records[bench.random.randrange(SIZE)])
    bench.keep(records)
    return signed_before(index, index + 1)


def reorder_records(bench: Bench) -> range:
    records, index = bench.records(), bench.random.randrange(SIZE - 1)
    records[index], records[index + 1] = records[index + 1], records[index]
    bench.keep(records)
    return signed_before(index, index + 1)


def truncate_tree(bench: Bench) -> range:
    size_ = bench.random.randrange(SIZE * RECORD_BYTES)
    os.truncate(bench.files.tree_path, size_)
    return signed_before(size_ // RECORD_BYTES)


def flip_checkpoints(bench: Bench) -> range:
    path = bench.files.checkpoints_path
    path.write_bytes(bench.flipped(path.read_bytes()))
    return range(SIZE)


def truncate_checkpoints(bench: Bench) -> range:
    path = bench.files.checkpoints_path
    os.truncate(path, bench.random.randrange(path.stat().st_size))
    return range(SIZE)


def swap_checkpoints(bench: Bench) -> range:
    notes = bench.files.notes()
    one, two = bench.random.sample(range(len(notes)), 2)
    notes[one], notes[two] = notes[two], notes[one]
    bench.keep_notes(notes)
    return range(SIZE)


def drop_checkpoint(bench: Bench) -> range:
    """Roll the log back to its first checkpoint, whole and consistent."""
    notes = bench.files.notes()[: bench.random.randrange(1, 3)]
    bench.keep_notes(notes)
    bench.keep(bench.records()[: 100 * len(notes)])
    return exactly(100 * len(notes))


def other_key(bench: Bench) -> range:
    key = SigningKey.from_seed("keyturn/audit", bench.random.randbytes(32))
    notes, index = bench.files.notes(), bench.random.randrange(3)
    entries = int(notes[index].split("\n")[1])
    notes[index] = Checkpoint(bench.files.origin(), entries, b"r" * 32).signed(key)
    bench.keep_notes(notes)
    return exactly(100 * index)


def flip_segment(bench: Bench) -> range:
    with bench.segment() as (lines, line):
        lines[line] = bench.flipped(lines[line])
    return exactly(bench.first_bad)


def change_segment(bench: Bench) -> range:
    """Change the actor, the text, or the event itself, in one entry."""
    words = [("U0ANA", "U0BEN"), ("teuer", "billig"), ("rejected", "executed")]
    with bench.segment() as (lines, line):
        row = json.loads(lines[line])
        row[2] = row[2].replace(*bench.random.choice(words))
        lines[line] = json.dumps(row).encode() + b"\n"
    return exactly(bench.first_bad)


def cut_segment(bench: Bench) -> range:
    with bench.segment() as (lines, line):
        del lines[line]
    return exactly(bench.first_bad)


def damage_segment(bench: Bench) -> range:
    start = 100 * bench.random.randrange(2)
    path = segment_path(bench.files, start)
    os.truncate(path, bench.random.randrange(path.stat().st_size - 1))
    return exactly(start)


def lose_segment(bench: Bench) -> range:
    start = 100 * bench.random.randrange(2)
    segment_path(bench.files, start).unlink()
    return exactly(start)


CHANGES: list[Change] = [
    flip_tree, delete_record, insert_record, reorder_records, truncate_tree,
    flip_checkpoints, truncate_checkpoints, swap_checkpoints, drop_checkpoint,
    other_key, flip_segment, change_segment, cut_segment, damage_segment,
    lose_segment,
]  # fmt: skip


@pytest.mark.slow
async def test_a_thousand_changes_are_noticed_and_the_first_bad_entry_named(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verify = await written(house, monkeypatch)
    copy = tmp_path / "copy"
    shutil.copytree(house.files.folder, copy)
    bench = Bench(house.files, house.files.folder, copy, random.Random(5))  # noqa: S311 - the same each time
    wrong: list[tuple[str, Verified, range]] = []

    for number_ in range(size(deep=1000, short=150)):
        change = CHANGES[number_ % len(CHANGES)]
        bench.reset()
        where = change(bench)
        found = verify()
        if found.first_bad is None or found.first_bad.index not in where:
            wrong.append((change.__name__, found, where))

    bench.reset()
    assert verify().problems == []
    assert not wrong, [(name, found.first_bad, where) for name, found, where in wrong]
