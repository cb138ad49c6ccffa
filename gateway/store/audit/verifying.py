"""Verify the audit log of a tenant: its tree, checkpoints and segments.

The entries in files are compared with the tree, and the tree with signed checkpoints.
Each problem has the index of the first affected entry; entries from there on are not
reliable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.errors import AuditUnreadable, NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.store.audit.files import (
    Row,
    Segment,
    TreeFiles,
    problem_of,
    read_rows,
    segment_path,
    segments,
)
from keyturn.gateway.store.events.readers import EntryId
from keyturn.gateway.trust.checkpoints import Checkpoint, TreeHead, verified_checkpoint


@dataclass(frozen=True)
class Problem:
    """A problem, and the index of the first affected entry."""

    index: int
    text: str


@dataclass
class Verified:
    """Result of verifying one tenant's log.

    Attributes:
        tenant: owner of the log.
        origin: name of the log; empty if there is no tree yet.
        size: number of entries in the newest checkpoint.
        checkpoints: number of valid checkpoints.
        kept_from: index of the first entry with more than a hash.
        unsigned: number of entries without a checkpoint.
        not_ours: number of entries from other programs, by the state of their seal.
        problems: the problems found.
    """

    tenant: str
    origin: str = ""
    size: int = 0
    checkpoints: int = 0
    kept_from: int = 0
    unsigned: int = 0
    not_ours: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def first_bad(self) -> Problem | None:
        """Return the problem with the lowest index."""
        return min(self.problems, key=lambda one: one.index, default=None)


@dataclass(frozen=True)
class Evidence:
    """Input of a verification.

    Attributes:
        files: files of the tree.
        keys: public keys accepted for checkpoints.
        noted: origin, size and root of the newest checkpoint, according to the store.
        oldest_ms: entries before this time may have been dropped.
        outside: a checkpoint saved elsewhere, as a signed note.
    """

    files: TreeFiles
    keys: Sequence[PublicKey]
    noted: tuple[str, int, str]
    oldest_ms: int
    outside: str = ""


Progress = Callable[[int, int], None]
"""Called at each entry with the numbers of verified entries and of all entries."""


def verify_log(
    what: Evidence, *, progress: Progress = lambda _done, _all: None
) -> Verified:
    """Verify one tenant's log; see `Verified`."""
    found = Verified(what.files.tenant)
    found.problems += _problems(what, found, progress)
    return found


def _problems(
    what: Evidence, found: Verified, progress: Progress
) -> Generator[Problem]:
    try:
        found.origin = what.files.origin()
    except AuditUnreadable as error:
        yield Problem(0, str(error))
        return
    if not found.origin:
        if tree := what.noted[0]:
            text = f"the tree {tree!r} that the store knows is not here"
            yield Problem(0, text)
        return
    signed = yield from _checkpoints(what, found)
    yield from _compare_noted(what, found, signed)
    # Rows are found by binary search, so the tree must be ordered.
    if (yield from _compare_tree(what, found, signed, progress)) and (
        problem := _compare_rows(what, found, progress)
    ):
        yield problem


def _checkpoints(
    what: Evidence, found: Verified
) -> Generator[Problem, None, list[Checkpoint]]:
    """Return the valid checkpoints before the first invalid one."""
    signed, notes = list[Checkpoint](), what.files.notes()
    path, size = what.files.checkpoints_path, 0
    for number, note in enumerate(notes, start=1):
        try:
            one = verified_checkpoint(note, origin=found.origin, keys=what.keys)
        except NotVerified as error:
            text = f"checkpoint {number} is refused: {error.problem}"
            yield Problem(size, text)
            return signed
        if one.size <= size:
            text = f"checkpoint {number} has {one.size} entries, after one with {size}"
            yield Problem(one.size, text)
            return signed
        signed.append(one)
        size = one.size
        found.size, found.checkpoints = size, len(signed)
    whole = sum(len(note.encode()) + 1 for note in notes)
    if path.exists() and path.stat().st_size != whole:
        yield Problem(size, f"checkpoint {len(notes) + 1} cannot be read")
    return signed


def _compare_noted(
    what: Evidence, found: Verified, signed: Sequence[Checkpoint]
) -> Generator[Problem]:
    """Compare the newest checkpoint with copies saved elsewhere."""
    origin, size, root = what.noted
    roots = {one.size: one.root.hex() for one in signed}
    if origin and origin != found.origin:
        yield Problem(0, f"the store knows another tree, {origin!r}")
    elif size and roots.get(size) != root:
        text = f"the store knows a checkpoint with {size} entries that is not here"
        yield Problem(min(found.size, max(size, 1) - 1), text)
    if not what.outside:
        return
    try:
        kept = verified_checkpoint(what.outside, origin=found.origin, keys=what.keys)
    except NotVerified as error:
        text = f"the checkpoint that was given is refused: {error.problem}"
        yield Problem(0, text)
        return
    if kept.size and roots.get(kept.size) != kept.root.hex():
        text = f"the given checkpoint with {kept.size} entries is not one of this log"
        yield Problem(min(found.size, kept.size - 1), text)


def _compare_tree(
    what: Evidence, found: Verified, signed: Sequence[Checkpoint], progress: Progress
) -> Generator[Problem, None, bool]:
    """Compare the tree with its checkpoints; return False if it is out of order."""
    head, before, left = TreeHead(), 0, list(signed)
    last: EntryId = (-1, 0)
    try:
        for index, record in enumerate(what.files.records(0, found.size)):
            if record.place <= last:
                text = f"entry {index} stands before the one in front of it"
                yield Problem(index, text)
                return False
            head.append(record.leaf)
            last = record.place
            if left and head.size == left[0].size:
                if head.root() != left[0].root:
                    entries = f"the entries {before} to {head.size - 1}"
                    yield Problem(before, f"{entries} are not those that were signed")
                    return True
                before, left = head.size, left[1:]
            progress(index, found.size)
    except AuditUnreadable as error:
        yield Problem(head.size, str(error))
        return True
    if head.size < found.size:
        text = f"the tree ends before entry {head.size} of {found.size}"
        yield Problem(head.size, text)
    return True


def _compare_rows(
    what: Evidence, found: Verified, progress: Progress
) -> Problem | None:
    """Compare each entry in files with the tree; return the first problem."""
    files, oldest = what.files, (what.oldest_ms, 0)
    listed = [one for one in segments(files) if one.start < found.size]
    index = found.kept_from = listed[0].start if listed else found.size
    try:
        if index and files.place(index - 1) >= oldest:
            kept = files.index_of(oldest)
            return Problem(kept, f"entry {kept} is not kept, and should be")
        records = files.records(index, found.size)
        for row, record in zip(_rows(files, listed), records, strict=False):
            if problem := problem_of(row, record, index):
                return Problem(index, problem)
            if record.state is not SealState.SEALED:
                count = found.not_ours.get(record.state, 0)
                found.not_ours[record.state] = count + 1
            index += 1
            progress(index, found.size)
    except (AuditUnreadable, OSError) as error:
        return Problem(index, str(error))
    if index < found.size:
        return Problem(index, f"entry {index} is not kept any more")
    return None


def _rows(files: TreeFiles, listed: Sequence[Segment]) -> Iterator[Row]:
    """Yield the entries of the segments before the first gap."""
    end = listed[0].start if listed else 0
    for one in listed:
        if one.start != end:
            return
        rows = read_rows(segment_path(files, one.start))
        yield from rows[: one.end - one.start]
        end += len(rows)
