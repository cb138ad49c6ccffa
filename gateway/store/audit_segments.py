"""Files of the audit log: sealed segments, each chained to the one before.

A segment is a gzip file of JSON lines. The first line is its header: which entries it
holds, the SHA-256 of the lines behind it, and the SHA-256 of the header of the segment
before. So no segment can be changed, left out or exchanged without notice by whoever
compares the chain with the end of it, which the store keeps.

A file appears whole or not at all, and is never written again: it is written under
another name, synced, linked to its own name, and then the folder is synced.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import ValidationError

from twokey.gateway.approvals.audit_leaf import Leaf, SealState, kept_of, leaf_of
from twokey.gateway.errors import AuditUnreadable
from twokey.gateway.protocol.records import Record
from twokey.gateway.secret_file import sync_folder
from twokey.gateway.store.audit_seals import nonce_of
from twokey.gateway.trust.merkle_tree import leaf_hash

FORMAT = 2
"""In which segments are written. Format 1 is read, too: its ``content`` is the SHA-256
of the lines behind the header, and its entries have no seals."""

FIRST = ""
"""What the first segment has in place of the digest of one before."""


class Row(NamedTuple):
    """An entry as the store holds it, and what the audit tree knows of it.

    Attributes:
        seq: its place.
        at: its time.
        event: the event's text; where it was erased, what `kept_of` it.
        seal: beside it; empty where an older version wrote it, or it was erased.
        state: of that seal.
        leaf: what is left where the rest was erased.
    """

    seq: str
    at: str
    event: str
    seal: str = ""
    state: str = SealState.UNSEALED
    leaf: str = ""

    @property
    def leaf_text(self) -> bytes:
        """Return the leaf of the entry, which is hashed in the tree."""
        return self.leaf.encode() or self.opened_leaf.text

    @property
    def opened_leaf(self) -> Leaf:
        """Return the leaf of an entry that was not erased, with what it hides."""
        rev, nonce = nonce_of(self.seal)
        state = SealState(self.state)
        return leaf_of(
            seq=self.seq,
            at=self.at,
            event=self.event,
            seal=self.seal,
            rev=rev if state is SealState.SEALED else 0,
            state=state,
            # Entries of older versions have no random part: whoever guesses what was
            # erased of one can test the guess.
            nonce=nonce or self.seq.encode(),
        )


class Header(Record):
    """What a segment says of itself.

    Attributes:
        format: of the file.
        shard: whose audit log it is; tenants of one shard share it.
        number: from 1, one more than that of the segment before.
        first: the place of its first entry in the audit log.
        last: the place of its last entry.
        entries: how many there are.
        content: SHA-256 of the hashes of its leaves, as hex: what may be erased of an
            entry is not in it.
        before: digest of the header of the segment before.
    """

    format: int = FORMAT
    shard: str
    number: int
    first: str
    last: str
    entries: int
    content: str
    before: str = FIRST

    @property
    def line(self) -> bytes:
        """Return the first line of the file."""
        return self.model_dump_json().encode() + b"\n"

    @property
    def digest(self) -> str:
        """Return what the next segment has as ``before``."""
        return hashlib.sha256(self.line).hexdigest()


def content_of(rows: Sequence[Row]) -> bytes:
    """Return the lines of entries; the same for the same entries."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def digest_of(rows: Sequence[Row]) -> str:
    """Return the ``content`` of a header."""
    leaves = hashlib.sha256()
    for row in rows:
        leaves.update(leaf_hash(row.leaf_text))
    return leaves.hexdigest()


def _first_digest(rows: Sequence[Row]) -> str:
    """Return the ``content`` of a header of format 1."""
    lines = (json.dumps(row[:3]).encode() + b"\n" for row in rows)
    return hashlib.sha256(b"".join(lines)).hexdigest()


def header_of(
    shard: str, number: int, before: str, rows: Sequence[Row], *, format_: int = FORMAT
) -> Header:
    """Return the header of a segment that holds these entries, at least one."""
    return Header(
        format=format_,
        shard=shard,
        number=number,
        first=rows[0].seq,
        last=rows[-1].seq,
        entries=len(rows),
        content=digest_of(rows) if format_ > 1 else _first_digest(rows),
        before=before,
    )


def segment_path(folder: Path, shard: str, number: int) -> Path:
    """Return where a segment is."""
    return folder / f"{shard}-{number:08d}.jsonl.gz"


def write_segment(folder: Path, header: Header, rows: Sequence[Row]) -> None:
    """Write a segment so that it is on the disk when this returns.

    Raises:
        FileExistsError: there is one of this number already.
        OSError: when it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = segment_path(folder, header.shard, header.number)
    # Another name each time: a process that was killed left its own behind, and one
    # that was paused may still write.
    rough = path.with_suffix(f".{secrets.token_hex(8)}.part")
    try:
        _write_rough(rough, header, rows)
        # And not renamed: a rename would replace what another sealer has written.
        os.link(rough, path)
    finally:
        rough.unlink(missing_ok=True)
    sync_folder(folder)


def _write_rough(rough: Path, header: Header, rows: Sequence[Row]) -> None:
    body = gzip.compress(header.line + content_of(rows), mtime=0)
    opened = os.open(rough, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def erase(folder: Path, shard: str, number: int, seqs: Collection[str]) -> None:
    """Erase who acted and what they wrote in entries of a segment, for good.

    What is left of an entry is its leaf, so segment and tree still verify.

    Raises:
        AuditUnreadable: when the segment is not what its header says, or an older
            version wrote it.
        OSError: when it cannot be written.
    """
    path = segment_path(folder, shard, number)
    header = read_header(folder, shard, number)
    if header is None:
        raise missing(folder, shard, number)
    if header.format == 1:
        raise AuditUnreadable(
            f"The segment {str(path)!r} of the audit log was sealed by a version that "
            "did not prepare it for this; nothing of it was erased."
        )
    rows = [
        one if one.leaf or one.seq not in seqs else _erased(one)
        for one in read_segment(folder, header)
    ]
    rough = path.with_suffix(f".{secrets.token_hex(8)}.part")
    try:
        _write_rough(rough, header, rows)
        rough.replace(path)
    finally:
        rough.unlink(missing_ok=True)
    sync_folder(folder)


def _erased(row: Row) -> Row:
    leaf = row.opened_leaf
    return Row(row.seq, row.at, kept_of(leaf), "", row.state, leaf.text.decode())


def read_header(folder: Path, shard: str, number: int) -> Header | None:
    """Return the header of a segment; None when there is no such file.

    Raises:
        AuditUnreadable: when it cannot be read.
    """
    path = segment_path(folder, shard, number)
    try:
        with gzip.open(path) as file:
            return _header(path, file.readline())
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def read_segment(folder: Path, header: Header) -> list[Row]:
    """Return the entries of a segment.

    Raises:
        FileNotFoundError: when it is not there.
        AuditUnreadable: when it cannot be read, or is not what its header says.
    """
    path = segment_path(folder, header.shard, header.number)
    try:
        with gzip.open(path) as file:
            found, content = file.readline(), file.read()
    except FileNotFoundError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error
    if found != header.line:
        raise _changed(path)
    try:
        lines = content.splitlines()
        rows = [Row(*cast("list[str]", json.loads(one))) for one in lines]
        now = digest_of(rows) if header.format > 1 else _first_digest(rows)
    except (ValueError, TypeError) as error:
        raise _changed(path) from error
    if now != header.content:
        raise _changed(path)
    return rows


def chain(
    folder: Path, shard: str, numbers: range, digest: str
) -> Iterator[Header | None]:
    """Yield the headers of segments, each checked against the next, the newest first.

    Args:
        folder: where they are.
        shard: whose they are.
        numbers: which ones, without a gap.
        digest: of the newest, as the store keeps it.

    Raises:
        AuditUnreadable: when one is not what the one behind it, or the store, says.
    """
    expected = digest
    for number in reversed(numbers):
        header = read_header(folder, shard, number)
        # The caller knows whether it may be missing: its time may be over meanwhile.
        if header is not None:
            if (header.digest, header.shard, header.number) != (
                expected, shard, number,
            ):  # fmt: skip
                raise _changed(segment_path(folder, shard, number))
            expected = header.before
        yield header
        if header is None:
            return


def remove_segments(folder: Path, shard: str, before: int) -> None:
    """Remove the segments below a number, those that an earlier try left included."""
    number = before - 1
    while number > 0 and segment_path(folder, shard, number).exists():
        segment_path(folder, shard, number).unlink(missing_ok=True)
        number -= 1


def remove_rough(folder: Path, shard: str) -> None:
    """Remove what sealers of a shard that were killed left half written.

    Only for who may seal. Another sealer that still writes was paused, and lost that
    right: its link fails, and its segment is sealed anew.
    """
    for rough in folder.glob(f"{shard}-*.part"):
        rough.unlink(missing_ok=True)


def missing(folder: Path, shard: str, number: int) -> AuditUnreadable:
    """Return the error about a segment that is not there."""
    path = segment_path(folder, shard, number)
    return AuditUnreadable(
        f"The segment {str(path)!r} of the audit log is missing; bring it back from a "
        "copy, or set 'audit_folder' to the folder that has it."
    )


def _header(path: Path, line: bytes) -> Header:
    try:
        header = Header.model_validate_json(line)
    except ValidationError as error:
        raise _changed(path) from error
    if header.format > FORMAT:
        raise AuditUnreadable(
            f"The segment {str(path)!r} of the audit log has the format "
            f"{header.format}, and this version reads up to {FORMAT}; use a newer one."
        )
    return header


def _unreadable(path: Path, error: Exception) -> AuditUnreadable:
    return AuditUnreadable(
        f"The segment {str(path)!r} of the audit log cannot be read "
        f"({type(error).__name__}); bring it back from a copy."
    )


def _changed(path: Path) -> AuditUnreadable:
    return AuditUnreadable(
        f"The segment {str(path)!r} of the audit log was changed or exchanged: it does "
        "not fit the chain; bring it back from a copy."
    )
