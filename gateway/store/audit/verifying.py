"""Verify the audit log of a tenant: its tree, checkpoints and segments.

The entries in files are compared with the tree, and the tree with signed checkpoints.
Each problem has the index of the first affected entry; entries from there on are not
reliable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.public_keys import PublicKey
from keyturn.gateway.store.audit.files import Damaged, TreeFiles, read_segment, segments
from keyturn.gateway.store.audit.log import TreeNote, place_text
from keyturn.gateway.store.events.outbox import EntryId
from keyturn.gateway.trust.audit_proofs import (
    Checkpoint,
    MerkleTree,
    verified_checkpoint,
)


@dataclass(frozen=True, order=True)
class Problem:
    """A problem, and the index of the first affected entry."""

    index: int
    problem: str


@dataclass
class Verified:
    """Result of verifying one tenant's log.

    Attributes:
        tenant: owner of the log.
        origin: name of the log; empty if there is no tree yet.
        entries: number of entries in the newest checkpoint.
        checkpoints: number of valid checkpoints.
        kept_from: index of the first entry with more than a hash.
        unsigned: number of entries without a checkpoint.
        not_ours: number of entries from other programs, by the state of their seal.
        problems: the problems found.
    """

    tenant: str
    origin: str = ""
    entries: int = 0
    checkpoints: int = 0
    kept_from: int = 0
    unsigned: int = 0
    not_ours: dict[str, int] = field(default_factory=dict[str, int])
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def first_bad(self) -> Problem | None:
        """Return the problem with the lowest index."""
        return min(self.problems, default=None)

    def add(self, index: int, problem: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(index, problem))


Progress = Callable[[int, int], None]
"""Called at each entry with the numbers of verified entries and of all entries."""


def verify_log(
    files: TreeFiles,
    keys: Sequence[PublicKey],
    noted: TreeNote,
    *,
    oldest_ms: int = 0,
    kept: Sequence[str] = (),
    progress: Progress = lambda _done, _all: None,
) -> Verified:
    """Verify one tenant's log; see `Verified`.

    Args:
        files: files of the tree.
        keys: public keys accepted for checkpoints.
        noted: the store's copy of the newest checkpoint.
        oldest_ms: entries before this time may have been dropped.
        kept: checkpoints saved elsewhere, as signed notes.
        progress: called with the numbers of verified entries and of all entries.
    """
    found = Verified(files.tenant)
    try:
        found.origin = files.origin()
        if not found.origin:
            if noted.origin:
                text = f"the tree {noted.origin!r} that the store knows is not here"
                found.add(0, text)
            return found
        signed = _checkpoints(files, keys, found)
        _compare_note(files, noted, signed, found)
        for note in kept:
            _compare_kept(note, keys, signed, found)
        _compare_tree(files, signed, found, progress)
        _compare_segments(files, oldest_ms, found)
    except Damaged as error:
        found.add(error.index, error.problem)
    return found


def _checkpoints(
    files: TreeFiles, keys: Sequence[PublicKey], found: Verified
) -> list[Checkpoint]:
    """Return the valid checkpoints before the first invalid one."""
    signed, notes = list[Checkpoint](), files.notes()
    for number, note in enumerate(notes, start=1):
        try:
            one = verified_checkpoint(note, origin=found.origin, keys=keys)
        except NotVerified as error:
            text = f"checkpoint {number} is refused: {error.problem}"
            found.add(found.entries, text)
            return signed
        if one.size <= found.entries:
            text = f"checkpoint {number} has not more entries than the one before"
            found.add(one.size, text)
            return signed
        signed.append(one)
        found.entries, found.checkpoints = one.size, len(signed)
    whole = sum(len(note.encode()) + 1 for note in notes)
    if files.checkpoints_path.stat().st_size != whole:
        found.add(found.entries, f"checkpoint {len(notes) + 1} cannot be read")
    return signed


def _compare_note(
    files: TreeFiles, noted: TreeNote, signed: Sequence[Checkpoint], found: Verified
) -> None:
    """Compare the checkpoints with the store's note."""
    size = noted.size
    index = min(found.entries, max(size, 1) - 1)
    roots = {one.size: one.root.hex() for one in signed}
    if noted.origin and noted.origin != found.origin:
        found.add(0, f"the store knows another tree, {noted.origin!r}")
    elif size and roots.get(size) != noted.root:
        text = f"the store knows a checkpoint with {size} entries that is not here"
        found.add(index, text)
    end = place_text(files.place(size - 1)) if 0 < size <= files.size else ""
    if size <= files.size and noted.last != end:
        text = f"the store has {noted.last!r} as the wrong end of {size} entries"
        found.add(index, text)


def _compare_kept(
    note: str, keys: Sequence[PublicKey], signed: Sequence[Checkpoint], found: Verified
) -> None:
    """Compare the checkpoints with one that was saved elsewhere."""
    try:
        kept = verified_checkpoint(note, origin=found.origin, keys=keys)
    except NotVerified as error:
        found.add(0, f"the given checkpoint is refused: {error.problem}")
        return
    if kept not in signed:
        text = f"the given checkpoint with {kept.size} entries is not one of this log"
        found.add(min(found.entries, max(kept.size, 1) - 1), text)


def _compare_tree(
    files: TreeFiles, signed: Sequence[Checkpoint], found: Verified, progress: Progress
) -> None:
    """Compare the tree with its checkpoints."""
    tree, before, left = MerkleTree(), 0, list(signed)
    last: EntryId = (-1, 0)
    for index, record in enumerate(files.records(0, found.entries)):
        if record.place <= last:
            # Nothing else is verified: entries are found by their order.
            raise Damaged(
                files.tree_path,
                f"entry {index} is not newer than the one before",
                index,
            )
        tree.append(record.leaf)
        last = record.place
        if left and tree.size == left[0].size:
            if tree.root() != left[0].root:
                entries = f"the entries {before} to {tree.size - 1}"
                found.add(before, f"{entries} are not those that were signed")
                return
            before, left = tree.size, left[1:]
        progress(index, found.entries)
    if tree.size < found.entries:
        text = f"the tree ends before entry {tree.size} of {found.entries}"
        found.add(tree.size, text)


def _compare_segments(files: TreeFiles, oldest_ms: int, found: Verified) -> None:
    """Compare each entry in segments with the tree."""
    listed = segments(files)
    start = found.kept_from = listed[0].start if listed else found.entries
    if start and files.place(start - 1) >= (oldest_ms, 0):
        index = files.index_of((oldest_ms, 0))
        found.add(index, f"entry {index} is not kept, and should be")
        return
    for one in listed:
        for row in read_segment(files, one):
            if row.state != SealState.SEALED:
                found.not_ours[row.state] = found.not_ours.get(row.state, 0) + 1
