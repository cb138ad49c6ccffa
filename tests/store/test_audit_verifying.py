"""A thousand changes of an audit log are noticed, and the first bad entry named."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from keyturn.gateway.store.audit.verifying import Evidence, Verified, verify_log
from keyturn.gateway.store.connection.connection import fields, number, text
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.checkpoints import Checkpoint
from keyturn.gateway.trust.key_folder import Role, SigningKey
from tests.levels import size
from tests.service.audit_harness import AuditHarness

SIZE, FIRST = 250, 100
"""Entries of the tree, and of its first checkpoint."""


@pytest.fixture
def house(store: Store, tmp_path: Path) -> AuditHarness:
    return AuditHarness(store, tmp_path)


async def written(house: AuditHarness, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    """Write a log with three segments and three checkpoints."""
    monkeypatch.setattr(audit_writing, "SEGMENT", 100)
    for count in (100, 100, 50):
        await house.put(count)
        await house.writer.tick(is_last=True)
    noted = fields(await house.store.conn.command("HGETALL", house.keys.audit_tree))
    assert house.store.keyring
    return Evidence(
        files=house.files,
        keys=public_keys(house.store.keyring),
        noted=(
            text(noted["origin"]), number(noted["size"]), text(noted["root"]),
        ),
        oldest_ms=0,
    )  # fmt: skip


async def test_a_log_that_nobody_changed_verifies(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = await written(house, monkeypatch)

    found = verify_log(what)

    assert found.problems == []
    assert (found.size, found.checkpoints, found.kept_from) == (SIZE, 3, 0)
    same = await verify_log_of(house.store, "default")
    assert same == found


async def test_what_no_checkpoint_covers_yet_is_told(house: AuditHarness) -> None:
    await house.put(100)
    await house.writer.tick()
    await house.put(5)
    await house.writer.tick()
    await house.put(2)

    found = await verify_log_of(house.store, "default")

    assert (found.size, found.unsigned, found.problems) == (100, 7, [])


async def test_a_checkpoint_that_was_kept_elsewhere_shows_another_history(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = await written(house, monkeypatch)
    [first, *_] = house.files.notes()
    assert house.store.keyring
    key = house.store.keyring.signing(Role.AUDIT)
    forked = Checkpoint(house.checkpoints()[0].origin, 100, b"x" * 32).signed(key)

    assert verify_log(replace(what, outside=first)).problems == []
    assert verify_log(replace(what, outside=forked)).first_bad
    assert verify_log(replace(what, outside="junk")).first_bad


async def test_what_was_erased_leaves_the_log_verifiable(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = await written(house, monkeypatch)
    segment = Segment(0, 100)
    path = segment_path(what.files, 0)
    [first, *_] = gzip.decompress(path.read_bytes()).splitlines()
    seq = json.loads(first)[0]

    erase(what.files, segment, {seq})

    assert verify_log(what).problems == []
    [event] = [
        one async for one in house.store.audit(house.keys).entries() if one.seq == seq
    ]
    assert (event.actor, event.reason) == ("", "")
    assert event.approval
    assert b"U0ANA" not in gzip.decompress(path.read_bytes()).splitlines()[0]


async def test_where_only_hashes_are_kept_they_are_those_that_were_signed(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = await written(house, monkeypatch)
    for start in (0, 100, 200):
        segment_path(what.files, start).unlink()
    kept = replace(what, oldest_ms=2**60)
    before = verify_log(kept)
    body = bytearray(house.files.tree_path.read_bytes())
    body[130 * RECORD_BYTES + 20] ^= 1
    house.files.tree_path.write_bytes(body)

    found = verify_log(kept)

    assert (before.problems, before.kept_from) == ([], SIZE)
    assert found.first_bad
    assert found.first_bad.index == FIRST
    assert "100 to 199" in found.first_bad.text


async def test_what_is_not_kept_before_its_time_is_over_is_missing(
    house: AuditHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = await written(house, monkeypatch)

    segment_path(what.files, 0).unlink()
    found = verify_log(what)

    assert found.first_bad
    assert found.first_bad.index == 0


@dataclass
class Bench:
    """One log in files, to change and to put back."""

    what: Evidence
    folder: Path
    copy: Path
    random: random.Random

    def reset(self) -> Evidence:
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)
        return self.what

    @property
    def files(self) -> TreeFiles:
        return self.what.files

    def records(self) -> list[bytes]:
        body = self.files.tree_path.read_bytes()
        return [
            body[at : at + RECORD_BYTES] for at in range(0, len(body), RECORD_BYTES)
        ]

    def keep(self, records: list[bytes]) -> None:
        self.files.tree_path.write_bytes(b"".join(records))

    def lines(self, number_: int) -> tuple[Path, list[bytes]]:
        path = segment_path(self.files, 100 * (number_ - 1))
        return path, gzip.decompress(path.read_bytes()).splitlines(keepends=True)


Change = Callable[[Bench], tuple[Evidence, range]]
"""Changes a log; returns what is left, and where the first bad entry is."""


def exactly(index: int) -> range:
    return range(index, index + 1)


def signed_before(index: int) -> range:
    """Return from where on nothing counts where a signature covers an entry."""
    start = 0 if index < FIRST else 100 if index < 200 else 200
    return range(start, index + 1)


def flip_tree(bench: Bench) -> tuple[Evidence, range]:
    records = bench.records()
    index = bench.random.randrange(SIZE)
    record = bytearray(records[index])
    record[bench.random.randrange(RECORD_BYTES)] ^= 1 << bench.random.randrange(8)
    records[index] = bytes(record)
    bench.keep(records)
    # Its place may be that of a later one then, or of one before.
    return bench.what, range(signed_before(index).start, min(index + 2, SIZE))


def delete_record(bench: Bench) -> tuple[Evidence, range]:
    records = bench.records()
    index = bench.random.randrange(SIZE)
    del records[index]
    bench.keep(records)
    return bench.what, signed_before(index)


def insert_record(bench: Bench) -> tuple[Evidence, range]:
    records = bench.records()
    index = bench.random.randrange(SIZE)
    records.insert(index, records[bench.random.randrange(SIZE)])
    bench.keep(records)
    return bench.what, range(signed_before(index).start, index + 2)


def reorder_records(bench: Bench) -> tuple[Evidence, range]:
    records = bench.records()
    index = bench.random.randrange(SIZE - 1)
    records[index], records[index + 1] = records[index + 1], records[index]
    bench.keep(records)
    return bench.what, range(signed_before(index).start, index + 2)


def truncate_tree(bench: Bench) -> tuple[Evidence, range]:
    size = bench.random.randrange(SIZE * RECORD_BYTES)
    body = bench.files.tree_path.read_bytes()
    bench.files.tree_path.write_bytes(body[:size])
    return bench.what, signed_before(size // RECORD_BYTES)


def flip_checkpoints(bench: Bench) -> tuple[Evidence, range]:
    path = bench.files.checkpoints_path
    body = bytearray(path.read_bytes())
    at = bench.random.randrange(len(body))
    body[at] ^= 1 << bench.random.randrange(8)
    path.write_bytes(body)
    return bench.what, range(SIZE)


def truncate_checkpoints(bench: Bench) -> tuple[Evidence, range]:
    path = bench.files.checkpoints_path
    body = path.read_bytes()
    path.write_bytes(body[: bench.random.randrange(len(body))])
    return bench.what, range(SIZE)


def swap_checkpoints(bench: Bench) -> tuple[Evidence, range]:
    notes = bench.files.notes()
    one, two = bench.random.sample(range(len(notes)), 2)
    notes[one], notes[two] = notes[two], notes[one]
    bench.files.checkpoints_path.write_text("".join(f"{each}\n" for each in notes))
    return bench.what, range(SIZE)


def drop_checkpoint(bench: Bench) -> tuple[Evidence, range]:
    """Roll the log back to its first checkpoint, whole and consistent."""
    notes = bench.files.notes()[: bench.random.randrange(1, 3)]
    bench.files.checkpoints_path.write_text("".join(f"{each}\n" for each in notes))
    bench.keep(bench.records()[: 100 * len(notes)])
    return bench.what, exactly(100 * len(notes))


def other_key(bench: Bench) -> tuple[Evidence, range]:
    key = SigningKey.from_seed("keyturn/audit", bench.random.randbytes(32))
    if bench.random.random() < 0.5:
        return replace(bench.what, keys=[key.public]), exactly(0)
    notes = bench.files.notes()
    index = bench.random.randrange(3)
    head = notes[index].partition("\n\n")[0].split("\n")
    notes[index] = Checkpoint(bench.files.origin(), int(head[1]), b"r" * 32).signed(key)
    bench.files.checkpoints_path.write_text("".join(f"{each}\n" for each in notes))
    return bench.what, exactly(100 * index)


def flip_segment(bench: Bench) -> tuple[Evidence, range]:
    number_ = bench.random.randrange(1, 3)
    path, lines = bench.lines(number_)
    line = bench.random.randrange(len(lines))
    row = bytearray(lines[line])
    row[bench.random.randrange(len(row) - 1)] ^= 1 << bench.random.randrange(7)
    lines[line] = bytes(row)
    path.write_bytes(gzip.compress(b"".join(lines)))
    first = 100 * (number_ - 1)
    return bench.what, exactly(first + line)


def change_segment(bench: Bench) -> tuple[Evidence, range]:
    """Change the actor, the text, or the event itself, in one entry."""
    number_ = bench.random.randrange(1, 3)
    path, lines = bench.lines(number_)
    line = bench.random.randrange(len(lines))
    row = json.loads(lines[line])
    old, new = bench.random.choice(
        [("U0ANA", "U0BEN"), ("teuer", "billig"), ("rejected", "executed")]
    )
    row[2] = row[2].replace(old, new)
    lines[line] = json.dumps(row).encode() + b"\n"
    path.write_bytes(gzip.compress(b"".join(lines)))
    return bench.what, exactly(100 * (number_ - 1) + line)


def cut_segment(bench: Bench) -> tuple[Evidence, range]:
    path, lines = bench.lines(2)
    line = bench.random.randrange(len(lines))
    del lines[line]
    path.write_bytes(gzip.compress(b"".join(lines)))
    return bench.what, exactly(100 + line)


def damage_segment(bench: Bench) -> tuple[Evidence, range]:
    number_ = bench.random.randrange(1, 3)
    path, _ = bench.lines(number_)
    body = path.read_bytes()
    path.write_bytes(body[: bench.random.randrange(len(body) - 1)])
    return bench.what, exactly(100 * (number_ - 1))


def lose_segment(bench: Bench) -> tuple[Evidence, range]:
    number_ = bench.random.randrange(1, 3)
    bench.lines(number_)[0].unlink()
    return bench.what, exactly(100 * (number_ - 1))


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
    what = await written(house, monkeypatch)
    copy = tmp_path / "copy"
    shutil.copytree(house.files.folder, copy)
    bench = Bench(what, house.files.folder, copy, random.Random(5))  # noqa: S311 - the same each time
    wrong: list[tuple[str, Verified, range]] = []

    for number_ in range(size(deep=1000, short=150)):
        change = CHANGES[number_ % len(CHANGES)]
        bench.reset()
        changed, where = change(bench)
        found = verify_log(changed)
        if found.first_bad is None or found.first_bad.index not in where:
            wrong.append((change.__name__, found, where))

    bench.reset()
    assert verify_log(what).problems == []
    assert not wrong, [(name, found.first_bad, where) for name, found, where in wrong]
