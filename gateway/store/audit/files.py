"""Files of a tenant's audit log: signed tree, checkpoints and entries.

- ``T.tree`` has a record of fixed size for each entry: its position in the stream, the
  state of its seal, and the hash of its leaf. It is append-only.
- ``T.checkpoints`` has each checkpoint as a signed note with the name of the log. It is
  append-only, and synced before anything relies on it.
- ``T-<index>.jsonl.gz`` is a segment: JSON lines, one for each entry from that index of
  the tree on. The tree has a hash of each entry, so readers detect missing, changed or
  swapped segments.

The entries of a checkpoint are appended to the newest segment as one more gzip member,
and synced before the tree and the checkpoint are written. All other changes replace a
file atomically: under a temporary name, synced, renamed, and the folder is synced.
Writers hold `TreeFiles.locked`.

Entries and records after the newest checkpoint are not final. A new writer cuts them
off and reads the entries again from the store, which drops entries only after a
checkpoint. So a writer that is killed at any step leaves neither a gap nor two versions
of the log.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import secrets
import struct
import zlib
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

from keyturn.gateway.approvals.audit_leaf import Leaf, SealState, leaf_of
from keyturn.gateway.errors import AuditUnreadable, NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.secret_file import make_private, sync_folder
from keyturn.gateway.store.events.outbox import EntryId, entry_id
from keyturn.gateway.store.sealing.event_seals import nonce_of
from keyturn.gateway.trust.audit_proofs import (
    Checkpoint,
    MerkleTree,
    leaf_hash,
    verified_checkpoint,
)

_RECORD = struct.Struct(">QQB32s")
RECORD_BYTES = _RECORD.size
_STATES = (SealState.SEALED, SealState.UNSEALED, SealState.FORGED)
_BLOCK = 10_000
_MOST_CUT = 1_000
_NOTE = re.compile(r"(.+?\n\n(?:\u2014 [^\n]+\n)+)\n", re.DOTALL)


class Damaged(AuditUnreadable):
    """A file of the audit log does not have the signed entries.

    Attributes:
        index: index of the first affected entry.
        problem: the problem in words.
    """

    def __init__(self, path: Path, problem: str, index: int = 0) -> None:
        self.index = index
        self.problem = problem
        super().__init__(
            f"The file {str(path)!r} of the audit log cannot be used: {problem}. "
            "Restore it from a copy, or set 'audit_folder' to the folder that has it; "
            "'keyturn audit verify' names the first bad entry."
        )


class TreeRecord(NamedTuple):
    """An entry in the tree: its position, the state of its seal, its leaf hash."""

    place: EntryId
    state: SealState
    leaf: bytes

    @property
    def packed(self) -> bytes:
        """Return the record as bytes."""
        return _RECORD.pack(*self.place, _STATES.index(self.state), self.leaf)


class TreeFiles:
    """The files of one tenant's tree.

    Args:
        folder: folder of the files.
        tenant: owner of the log.
    """

    def __init__(self, folder: Path, tenant: str) -> None:
        self.folder = folder
        self.tenant = tenant
        self.tree_path = folder / f"{tenant}.tree"
        self.checkpoints_path = folder / f"{tenant}.checkpoints"

    def origin(self) -> str:
        """Return the log's name, which each checkpoint has; "" before the first one.

        Raises:
            Damaged: the checkpoints cannot be read.
        """
        notes = self.notes()
        return notes[0].partition("\n")[0] if notes else ""

    def new_origin(self) -> str:
        """Return the name of a new log.

        Its random part distinguishes logs that were started in two folders.
        """
        return f"keyturn/audit/{self.tenant}/{secrets.token_hex(8)}"

    @contextmanager
    def locked(self, writer: str) -> Generator[bool | None]:
        """Lock these files among the processes of this machine.

        The lease in the store ends by the clock. A process that was paused for longer
        still has this lock, so it and its successor never write concurrently.

        Args:
            writer: name of the caller, to detect other writers in between.

        Yields:
            Whether the caller was the last writer; None if another process has the
            lock.
        """
        make_private(self.folder)
        opened = os.open(
            self.folder / f"{self.tenant}.lock", os.O_RDWR | os.O_CREAT, 0o600
        )
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
            else:
                was = os.pread(opened, len(writer) + 1, 0)
                os.ftruncate(opened, 0)
                os.pwrite(opened, writer.encode(), 0)
                yield was == writer.encode()
        finally:
            os.close(opened)

    def notes(self) -> list[str]:
        """Return the checkpoints as signed notes, oldest first, without checking them.

        An incomplete last one is skipped.
        """
        try:
            text = self.checkpoints_path.read_bytes().decode()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise Damaged(self.checkpoints_path, "it cannot be read") from error
        return notes_in(text)

    def records(self, start: int = 0, end: int | None = None) -> Iterator[TreeRecord]:
        """Yield the tree's records in order, in a range of indexes.

        Raises:
            Damaged: a record is malformed.
        """
        index = start
        with suppress(FileNotFoundError), self.tree_path.open("rb") as file:
            file.seek(start * RECORD_BYTES)
            while end is None or index < end:
                count = _BLOCK if end is None else min(_BLOCK, end - index)
                block = file.read(count * RECORD_BYTES)
                whole = len(block) // RECORD_BYTES
                for ms, part, state, leaf in _RECORD.iter_unpack(
                    block[: whole * RECORD_BYTES]
                ):
                    if state >= len(_STATES):
                        why = f"entry {index} is no entry"
                        raise Damaged(self.tree_path, why, index)
                    yield TreeRecord((ms, part), _STATES[state], leaf)
                    index += 1
                if whole < count:
                    return

    @property
    def size(self) -> int:
        """Return the number of complete records."""
        try:
            return self.tree_path.stat().st_size // RECORD_BYTES
        except FileNotFoundError:
            return 0

    def index_of(self, place: EntryId) -> int:
        """Return the number of entries before a position in the stream."""
        return bisect_left(range(self.size), place, key=self.place)

    def place(self, index: int) -> EntryId:
        """Return the position of an entry in the stream; (0, 0) if there is none."""
        return next((one.place for one in self.records(index, index + 1)), (0, 0))

    @property
    def last(self) -> EntryId:
        """Return the position of the newest entry; (0, 0) if there is none."""
        return self.place(self.size - 1) if self.size else (0, 0)

    def noted_keys(self) -> str:
        """Return the signing keys that the log last recorded."""
        path = self.folder / f"{self.tenant}.keys.json"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def note_keys(self, keys: str) -> None:
        """Save the signing keys that the log last recorded."""
        write_file(self.folder / f"{self.tenant}.keys.json", keys.encode(), "wb")

    def append(self, records: Sequence[TreeRecord]) -> None:
        """Append records; they are on disk when this returns."""
        write_file(self.tree_path, b"".join(one.packed for one in records), "ab")

    def cut(self, size: int) -> None:
        """Truncate the tree to its first ``size`` records."""
        with suppress(FileNotFoundError), self.tree_path.open("r+b") as file:
            file.truncate(size * RECORD_BYTES)

    def write_checkpoint(self, note: str) -> None:
        """Write a checkpoint over the tree, which is on disk."""
        is_first = not self.checkpoints_path.exists()
        write_file(self.checkpoints_path, f"{note}\n".encode(), "ab")
        if is_first:
            sync_folder(self.folder)

    def mend(self, notes: Sequence[str]) -> None:
        """Cut off an incomplete checkpoint."""
        whole = sum(len(one.encode()) + 1 for one in notes)
        with suppress(FileNotFoundError), self.checkpoints_path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())

    def checked(
        self,
        notes: Sequence[str],
        keys: Sequence[PublicKey],
        *,
        has_proofs: bool = False,
    ) -> tuple[Checkpoint, MerkleTree, EntryId]:
        """Return the newest of these checkpoints, its tree and its last position.

        Without any checkpoint, the name of the log is empty.

        Raises:
            Damaged: the tree does not match the checkpoint.
        """
        last, tree = (0, 0), MerkleTree(has_proofs=has_proofs)
        if not notes:
            return Checkpoint("", 0, tree.root()), tree, last
        try:
            newest = verified_checkpoint(
                notes[-1], origin=notes[0].partition("\n")[0], keys=keys
            )
        except NotVerified as error:
            # Each gateway has its own key, and any may have written the file.
            problem = (
                f"{error.problem} ('keyturn keys list' prints another gateway's key "
                "there; add it here: keys: {audit: [<that line>]})"
            )
            raise Damaged(self.checkpoints_path, problem) from error
        for record in self.records(0, newest.size):
            tree.append(record.leaf)
            last = record.place
        if (tree.size, tree.root()) != (newest.size, newest.root):
            raise Damaged(self.tree_path, "it does not match its newest checkpoint")
        return newest, tree, last


def notes_in(text: str) -> list[str]:
    """Return the signed notes in a file of checkpoints, without checking them."""
    found, end = list[str](), 0
    while note := _NOTE.match(text, end):
        found.append(note[1])
        end = note.end()
    return found


def write_file(path: Path, data: bytes, mode: str) -> None:
    """Write or append to a private file, and sync it."""
    opened = os.open(
        path,
        os.O_WRONLY | os.O_CREAT | (os.O_APPEND if "a" in mode else os.O_TRUNC),
        0o600,
    )
    with os.fdopen(opened, mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    def opened_leaf(self) -> Leaf:
        """Return the leaf, whose hash is in the tree, and its unerased values."""
        if self.leaf:
            return Leaf(self.leaf.encode(), {})
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
    rows = zip(starts, [*starts[1:], size], strict=False)
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
        Damaged: earlier entries are missing, or more follow than a writer adds at once:
            the store may have dropped these.
    """
    starts = _starts(files)
    newest = max(starts, default=0)
    rows, is_whole = _read(segment_path(files, newest), newest)
    end = newest + len(rows)
    if newest > size or end - size > _MOST_CUT:
        raise Damaged(files.tree_path, "segments have entries that it lacks", size)
    if starts and newest == size:
        segment_path(files, newest).unlink()
        cut(files, size)
    elif end < size:
        raise missing(files, end)
    elif not is_whole or end > size:
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
        Damaged: the segment does not match the tree.
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
    """Return the entries of a segment, with their states according to the tree.

    Raises:
        Damaged: an entry is missing, cannot be read, or does not match the tree.
    """
    path, index = segment_path(files, segment.start), segment.start
    rows, found = _read(path, index)[0], list[Row]()
    for row, record in zip(rows, files.records(index, segment.end), strict=False):
        if problem := problem_of(row, record, index):
            raise Damaged(path, problem, index)
        found.append(row._replace(state=record.state))
        index += 1
    if index < segment.end:
        raise missing(files, index)
    return found


def _read(path: Path, start: int) -> tuple[list[Row], bool]:
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
        return [], True
    except (OSError, zlib.error) as error:
        why = f"it cannot be read ({type(error).__name__})"
        raise Damaged(path, why, start) from error
    return [_row(one) for one in bytes(found).splitlines()], not left


def _row(line: bytes) -> Row:
    try:
        return Row(*cast("list[str]", json.loads(line)))
    except (ValueError, TypeError):
        # This position precedes every entry of the tree, so it never matches.
        return Row("0-0", "", "")


def problem_of(row: Row, record: TreeRecord, index: int) -> str:
    """Describe how an entry differs from the tree; empty if it matches."""
    try:
        place = entry_id(row.seq)
        leaf = leaf_hash(row._replace(state=record.state).opened_leaf.text)
    except (ValueError, TypeError, AttributeError):
        return f"entry {index} cannot be read"
    if place < record.place:
        return f"before entry {index} stands one that was added later"
    if place > record.place:
        return f"entry {index} is missing"
    is_same = leaf == record.leaf and row.state in {"", record.state}
    return "" if is_same else f"entry {index} was changed"


def missing(files: TreeFiles, index: int) -> Damaged:
    """Return the error for a missing entry."""
    problem = f"entry {index} is missing, also at the end of the segment before it"
    return Damaged(segment_path(files, index), problem, index)
