"""Files of the audit log: entries, verified with the tree.

A segment is a gzip file of JSON lines, one for each entry. Its name contains the index
of its first entry in the audit tree. The tree has a hash of each entry, so readers
detect missing, changed or swapped segments.

The entries of a checkpoint are appended to the newest segment as one more gzip member,
and synced before the tree and the checkpoint are written. All other changes replace a
file atomically: under a temporary name, synced, renamed, and the folder is synced.
Writers hold `TreeFiles.locked`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from keyturn.gateway.approvals.audit_leaf import Leaf, SealState, leaf_of
from keyturn.gateway.errors import AuditUnreadable
from keyturn.gateway.secret_file import sync_folder
from keyturn.gateway.store.audit_seals import nonce_of
from keyturn.gateway.store.audit_tree import TreeFiles, TreeRecord, write_file
from keyturn.gateway.store.readers import EntryId, entry_id
from keyturn.gateway.trust.merkle_tree import leaf_hash

_NAME = re.compile(r"-([0-9]{12})\.jsonl\.gz")


class Row(NamedTuple):
    """An entry as stored, and its state according to the audit tree.

    Attributes:
        seq: its position in the stream.
        at: its time.
        event: the event's text; empty if erased.
        seal: the entry's seal; empty if erased, or written by another program.
        state: state of the seal according to the tree; empty if not yet compared.
        leaf: the remaining leaf of an erased entry.
    """

    seq: str
    at: str
    event: str
    seal: str = ""
    state: str = ""
    leaf: str = ""

    @property
    def leaf_text(self) -> bytes:
        """Return the entry's leaf, whose hash is in the tree."""
        return self.leaf.encode() or self.opened_leaf.text

    @property
    def opened_leaf(self) -> Leaf:
        """Return the leaf of an unerased entry, including the hidden parts."""
        return leaf_of(
            seq=self.seq,
            at=self.at,
            event=self.event,
            seal=self.seal,
            state=SealState(self.state or SealState.UNSEALED),
            # Unsealed entries have no random part, so a guess about an erased text can
            # be verified.
            nonce=nonce_of(self.seal) or self.seq.encode(),
        )


class Segment(NamedTuple):
    """A segment file: index of its first entry, and index after its last one."""

    start: int
    end: int


def segment_path(files: TreeFiles, start: int) -> Path:
    """Return the path of the segment that begins with an entry."""
    return files.folder / f"{files.tenant}-{start:012d}.jsonl.gz"


def segments(files: TreeFiles) -> list[Segment]:
    """Return a tenant's segments in the folder, oldest first.

    The newest one ends with the tree.
    """
    # Before the files are listed: segments are written before the tree.
    size = files.size
    starts = _starts(files)
    ends = [*starts[1:], size]
    rows = zip(starts, ends, strict=True) if starts else ()
    return [Segment(start, end) for start, end in rows if start < end]


def _starts(files: TreeFiles) -> list[int]:
    names = [one.name for one in files.folder.glob(f"{files.tenant}-*.jsonl.gz")]
    found = [_NAME.fullmatch(one.removeprefix(files.tenant)) for one in names]
    return sorted(int(one[1]) for one in found if one)


def append(files: TreeFiles, start: int, rows: Sequence[Row], *, most: int) -> None:
    """Append entries to the newest segment; they are on disk when this returns.

    Args:
        files: the files; their tree ends before the first of these entries.
        start: index of the first entry.
        rows: the entries.
        most: number of entries from which another segment begins.

    Raises:
        OSError: they cannot be written.
    """
    newest = max(_starts(files), default=start)
    path = segment_path(files, start if start - newest >= most else newest)
    write_file(path, gzip.compress(_lines(rows), mtime=0), "ab")
    sync_folder(files.folder)


def cut(files: TreeFiles, size: int) -> None:
    """Remove the entries after the first ``size`` ones, and incomplete writes.

    Raises:
        AuditUnreadable: earlier entries are missing.
    """
    starts = _starts(files)
    for start in starts:
        if start >= size:
            segment_path(files, start).unlink()
    newest = max((one for one in starts if one < size), default=None)
    if newest is None:
        if size:
            raise missing(files, 0)
        return
    rows, is_whole = _read(segment_path(files, newest))
    if len(rows) < size - newest:
        raise missing(files, newest + len(rows))
    if not is_whole or len(rows) > size - newest:
        _replace(files, newest, rows[: size - newest])


def expire(files: TreeFiles, oldest: EntryId) -> None:
    """Remove segments with only entries before a position; the newest one is kept."""
    for one in segments(files)[:-1]:
        if files.place(one.end - 1) < oldest:
            segment_path(files, one.start).unlink(missing_ok=True)


def _lines(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _replace(files: TreeFiles, start: int, rows: Sequence[Row]) -> None:
    # A fixed name: the remains of a killed process are overwritten.
    rough = files.folder / f"{files.tenant}.segment.part"
    write_file(rough, gzip.compress(_lines(rows), mtime=0), "wb")
    rough.replace(segment_path(files, start))
    sync_folder(files.folder)


def erase(files: TreeFiles, segment: Segment, seqs: Collection[str]) -> None:
    """Permanently erase people and their texts in entries of a segment.

    The leaf of each erased entry remains, so segment and tree still verify.

    Raises:
        AuditUnreadable: the segment does not match the tree.
        OSError: it cannot be written.
    """
    rows = [
        one if one.leaf or one.seq not in seqs else _erased(one)
        for one in read_segment(files, segment)
    ]
    _replace(files, segment.start, rows)


def _erased(row: Row) -> Row:
    leaf = row.opened_leaf.text.decode()
    return Row(row.seq, row.at, "", "", row.state, leaf)


def read_segment(files: TreeFiles, segment: Segment) -> list[Row]:
    """Return the entries of a segment.

    Raises:
        FileNotFoundError: the file is missing.
        AuditUnreadable: it cannot be read, or does not match the tree.
    """
    path, size = segment_path(files, segment.start), segment.end - segment.start
    rows = read_rows(path)[:size]
    what = f"The segment {str(path)!r} of the audit log was changed or exchanged"
    found = compared(files, segment.start, rows, what=what)
    if len(found) < size:
        raise missing(files, segment.start + len(found))
    return found


def read_rows(path: Path) -> list[Row]:
    """Return the entries of a segment file without comparing them with the tree.

    Raises:
        FileNotFoundError: the file is missing.
        AuditUnreadable: it cannot be read.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Row], bool]:
    """Return the entries of a file; False if the last write is incomplete."""
    found = bytearray()
    try:
        left = path.read_bytes()
        while left:
            member = zlib.decompressobj(wbits=31)
            part = member.decompress(left)
            if not member.eof:
                break
            found += part
            left = member.unused_data
    except FileNotFoundError:
        raise
    except (OSError, zlib.error) as error:
        raise AuditUnreadable(
            f"The segment {str(path)!r} of the audit log cannot be read "
            f"({type(error).__name__}); restore it from a copy."
        ) from error
    return [_row(one) for one in bytes(found).splitlines()], not left


def _row(line: bytes) -> Row:
    try:
        return Row(*cast("list[str]", json.loads(line)))
    except (ValueError, TypeError):
        # This position precedes every entry of the tree, so it never matches.
        return Row("0-0", "", hashlib.sha256(line).hexdigest())


def compared(
    files: TreeFiles, start: int, rows: Sequence[Row], *, what: str
) -> list[Row]:
    """Return entries with their states according to the tree.

    Args:
        files: files of the tree.
        start: index of the first entry.
        rows: the entries; those after the tree's end are dropped.
        what: subject of the error message.

    Raises:
        AuditUnreadable: an entry does not match the tree.
    """
    found: list[Row] = []
    records = files.records(start, start + len(rows))
    # The tree may be shorter than the rows.
    for index, (row, record) in enumerate(zip(rows, records, strict=False), start):
        if problem := problem_of(row, record, index):
            raise AuditUnreadable(
                f"{what}: {problem}. Restore it from a copy; 'keyturn audit verify' "
                "names the first bad entry."
            )
        found.append(row._replace(state=record.state))
    return found


def problem_of(row: Row, record: TreeRecord, index: int) -> str:
    """Describe how an entry differs from the tree; empty if it matches."""
    try:
        place = entry_id(row.seq)
        leaf = leaf_hash(row._replace(state=record.state).leaf_text)
    except (ValueError, TypeError, AttributeError):
        return f"entry {index} cannot be read"
    if place < record.place:
        return f"before entry {index} stands one that was added later"
    if place > record.place:
        return f"entry {index} is missing"
    is_same = leaf == record.leaf and row.state in {"", record.state}
    return "" if is_same else f"entry {index} was changed"


def missing(files: TreeFiles, index: int) -> AuditUnreadable:
    """Return the error for a missing entry."""
    name = segment_path(files, index).name
    return AuditUnreadable(
        f"Entry {index} of the audit log is missing in {str(files.folder)!r}: restore "
        f"the segment {name!r}, or else the one before it, from a copy, or set "
        "'audit_folder' to the folder that has it."
    )
