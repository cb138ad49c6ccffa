"""Read a tenant's audit log: sealed segments in files, then the entries in the store.

One command returns the next entries together with the position up to which the log is
sealed. If entries that the reader has not seen are sealed by then, it reads them from
the segments first, since the store may have dropped them. So every entry is read once,
even while another process seals and trims the log.

The store also has a note about the audit tree: its name, and its signed size. The note
prevents a gateway without the tree's folder from starting a new tree, and reveals a
gateway with an older copy. Only the signed files count. A forged note stops entries
from being signed, which raises an alarm.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from keyturn.gateway.approvals.audit_leaf import opened
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.errors import AuditUnreadable, NotVerified
from keyturn.gateway.store import audit_segments
from keyturn.gateway.store.audit_seals import decrypted_event, parts_of, sealed_text
from keyturn.gateway.store.audit_segments import Row, Segment
from keyturn.gateway.store.audit_tree import TreeFiles
from keyturn.gateway.store.connection import (
    Argument,
    Connection,
    Entry,
    Reply,
    entries,
    fields,
    text,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.readers import EntryId, entry_id

logger = logging.getLogger(__name__)

_TRIMMED = 10_000
"""Limit of entries dropped in one step."""

_PAGE = 500

_NUMBER = re.compile(rb"[0-9]{1,12}")

OVERDUE_MS = 10 * 60 * 1000
"""Age of an unsigned entry from which a missing checkpoint is reported; checkpoints are
made every minute if there are new entries."""

_FIELDS = ("origin", "size", "root", "last")

_PLACE = re.compile(r"[0-9]+-[0-9]+", re.ASCII)


@dataclass(frozen=True)
class Sealed:
    """Range of entries that are in segments.

    Attributes:
        first: index of the oldest.
        end: index after the newest; 0 if there are none.
        last: position of the newest, according to the tree's files.
    """

    first: int = 0
    end: int = 0
    last: EntryId = (0, 0)


class SealedNote(NamedTuple):
    """The store's note about sealed entries, which is not protected by a seal.

    Malformed numbers are read as 0.
    """

    first: int = 0
    end: int = 0
    last: str = ""

    @classmethod
    def of(cls, reply: Reply) -> SealedNote:
        """Parse the note."""
        found = fields(reply)
        first, end = (_NUMBER.fullmatch(found.get(x, b"")) for x in ("first", "end"))
        last = found.get("last", b"").decode(errors="replace")
        return cls(int(first[0]) if first else 0, int(end[0]) if end else 0, last)

    def by_files(self, files: TreeFiles, *, is_whole: bool = True) -> Sealed:
        """Return the sealed range according to the folder.

        The note only shows what should be in the folder.

        Raises:
            AuditUnreadable: if `is_whole` and the newest segment is missing.
        """
        found = audit_segments.segments(files)
        end = found[-1].end if found else 0
        if is_whole and end < self.end:
            raise audit_segments.missing(files, end)
        if not found:
            return Sealed(self.first, self.end)
        first = found[0].start
        return Sealed(
            first=min(self.first, first) if self.end else first,
            end=max(self.end, end),
            last=files.place(end - 1),
        )


class AuditLog:
    """The audit log of one tenant.

    Args:
        conn: connection to the store.
        keys: keys of the tenant.
        folder: folder of sealed segments; None: the whole log is in the store.
    """

    def __init__(self, conn: Connection, keys: Keys, folder: Path | None) -> None:
        self._conn = conn
        self._keys = keys
        self._folder = folder

    async def sealed(self) -> Sealed:
        """Return the sealed range.

        Raises:
            AuditUnreadable: when the newest segment is missing.
        """
        return await self._by_files(await self.noted())

    async def noted(self) -> SealedNote:
        """Return the store's note about the sealed range."""
        stored = await self._conn.command("HGETALL", self._keys.audit_sealed)
        return SealedNote.of(stored)

    async def append(self, event: Event) -> None:
        """Write an entry that belongs to no other change.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        body = event.model_dump_json(exclude_defaults=True)
        text, seal = parts_of(sealed_text(self._conn, self._keys, body))
        at_ms = await self._conn.now_ms(self._keys.audit)
        row: list[Argument] = ["XADD", self._keys.audit, "*", "e", text, "at", at_ms]
        await self._conn.keep([*row, "s", seal])

    async def trim(self, kept: timedelta, *, before: EntryId | None = None) -> None:
        """Drop old entries from the store, a few thousand at most.

        Does nothing for a sealed log: sealing drops the entries that are in files.

        Args:
            kept: retention of entries.
            before: a position; the entry there and all later ones stay.
        """
        now_ms = await self._conn.now_ms(self._keys.audit)
        oldest = (max(0, now_ms - int(kept.total_seconds() * 1000)), 0)
        await self.trim_to(oldest if before is None else min(oldest, before))

    async def trim_to(self, first: EntryId) -> None:
        """Drop entries before a position from the store, a few thousand at most."""
        # Exact trimming of a long stream would block the server. "~" with LIMIT removes
        # whole nodes, a part in each sweep, so some entries stay a little longer.
        before: list[Argument] = ["MINID", "~", place_text(first)]
        await self._conn.command("XTRIM", self._keys.audit, *before, "LIMIT", _TRIMMED)

    async def end(self) -> str:
        """Return the position of the newest entry; `entries` can continue after it."""
        sealed, reply = await self._with_sealed("XREVRANGE", "+", "-", 1)
        found = entries(reply)
        newest = entry_id(found[0].id) if found else (0, 0)
        return place_text(max(newest, sealed.last))

    async def entries(
        self, *, since_ms: int = 0, until_ms: int | None = None, after: str = ""
    ) -> AsyncGenerator[Event]:
        """Yield all entries, oldest first.

        Corrupt entries are logged with their position, and skipped.

        Args:
            since_ms: the earliest time, in Unix milliseconds of the store's clock.
            until_ms: exclusive end of the time range; None for now.
            after: ``seq`` of an entry; yields only later ones.

        Raises:
            StoreUnavailable: when the store does not answer, or a segment is missing
                or was changed.
        """
        rows = self.rows(since_ms=since_ms, until_ms=until_ms, after=after)
        async with aclosing(rows):
            async for row in rows:
                event = _event_of(row)
                if event is not None:
                    yield event

    async def rows(
        self, *, since_ms: int = 0, until_ms: int | None = None, after: str = ""
    ) -> AsyncGenerator[Row]:
        """Yield the raw entries; see `entries`."""
        # Stream ids start with the server's time in milliseconds.
        low = _behind(entry_id(after)) if after else (since_ms, 0)
        end = "+" if until_ms is None else f"({until_ms}-0"
        while until_ms is None or low < (until_ms, 0):
            sealed, reply = await self._with_sealed(
                "XRANGE", place_text(low), end, _PAGE
            )
            if sealed.end and sealed.last >= low:
                async for row in self._sealed_from(sealed, low, until_ms):
                    yield row
                low = _behind(sealed.last)
                continue
            found = entries(reply)
            for entry in found:
                yield self._row(entry)
            if len(found) < _PAGE:
                return
            # Continue after the last id, not by count: the log grows and is trimmed
            # concurrently.
            low = _behind(entry_id(found[-1].id))

    async def live(self, after: EntryId) -> AsyncGenerator[Row]:
        """Yield the store's entries after a position, sealed or not."""
        low = _behind(after)
        while True:
            reply = await self._conn.command(
                "XRANGE", self._keys.audit, place_text(low), "+", "COUNT", _PAGE
            )
            page = entries(reply)
            for entry in page:
                yield self._row(entry)
            if len(page) < _PAGE:
                return
            low = _behind(entry_id(page[-1].id))

    async def newest(self, limit: int) -> AsyncGenerator[Event]:
        """Yield up to ``limit`` entries, newest first.

        Entries are read on demand, so the caller may stop early. Corrupt entries are
        skipped; `entries` logs them.

        Raises:
            StoreUnavailable: as `entries` does.
        """
        end, left = "+", limit
        while left > 0:
            size = min(left, _PAGE)
            sealed, reply = await self._with_sealed("XREVRANGE", end, "-", size)
            found = entries(reply)
            # The store may have dropped some sealed entries: read those from files.
            rows = [self._row(one) for one in found if entry_id(one.id) > sealed.last]
            for row in rows:
                if (event := _event_of(row, is_logged=False)) is not None:
                    yield event
            left -= len(rows)
            if rows:
                end = f"({rows[-1].seq}"
            if len(rows) < size:
                break
        high = None if end == "+" else entry_id(end.removeprefix("("))
        async for row in self._sealed_back(high):
            if left <= 0:
                return
            left -= 1
            if (event := _event_of(row, is_logged=False)) is not None:
                yield event

    async def segments(self, sealed: Sealed) -> list[Segment]:
        """Return all retained segments, oldest first, without a gap.

        Raises:
            AuditUnreadable: when one is missing.
        """
        if not sealed.end:
            return []
        files = self._files()
        listed = await asyncio.to_thread(audit_segments.segments, files)
        found = [one for one in listed if sealed.first <= one.start < sealed.end]
        gap = audit_segments.first_gap(found, sealed.first, sealed.end)
        # The segment may have expired during the search.
        if gap is not None and gap >= (await self.sealed()).first:
            raise audit_segments.missing(files, gap)
        return found

    async def _sealed_from(
        self, sealed: Sealed, low: EntryId, until_ms: int | None
    ) -> AsyncGenerator[Row]:
        files, found = self._files(), await self.segments(sealed)
        start = await asyncio.to_thread(files.index_of, low)
        end = sealed.end
        if until_ms is not None:
            end = await asyncio.to_thread(files.index_of, (until_ms, 0))
        for one in found:
            if start < one.end and one.start < end:
                rows = await self._rows(one)
                for row in rows[max(0, start - one.start) : end - one.start]:
                    yield row

    async def _sealed_back(self, high: EntryId | None) -> AsyncGenerator[Row]:
        sealed = await self.sealed()
        end = sealed.end
        if high is not None and end:
            end = await asyncio.to_thread(self._files().index_of, high)
        for one in reversed(await self.segments(sealed)):
            if one.start < end:
                for row in reversed((await self._rows(one))[: end - one.start]):
                    yield row

    async def _rows(self, segment: Segment) -> list[Row]:
        files = self._files()
        try:
            return await asyncio.to_thread(audit_segments.read_segment, files, segment)
        except FileNotFoundError:
            # The segment may have expired during the read.
            if segment.start < (await self.sealed()).first:
                return []
            raise audit_segments.missing(files, segment.start) from None

    def _row(self, entry: Entry) -> Row:
        return row_of(self._conn, self._keys, entry)

    def _files(self) -> TreeFiles:
        if self._folder is None:
            raise AuditUnreadable(
                "A part of the audit log is in files; set 'audit_folder' to their "
                "folder."
            )
        return TreeFiles(self._folder, self._keys.tenant)

    async def _with_sealed(
        self, command: str, start: Argument, end: Argument, count: int
    ) -> tuple[Sealed, Reply]:
        """Return the sealed range and entries of the store in one snapshot."""
        sealed, reply = await self._conn.transaction(
            ["HGETALL", self._keys.audit_sealed],
            [command, self._keys.audit, start, end, "COUNT", count],
        )
        return await self._by_files(SealedNote.of(sealed)), reply

    async def _by_files(self, noted: SealedNote) -> Sealed:
        if self._folder is None and not noted.end:
            return Sealed()
        return await asyncio.to_thread(noted.by_files, self._files())


def row_of(conn: Connection, keys: Keys, entry: Entry) -> Row:
    """Return a store entry in the form of segments, without loss of bytes.

    Encrypted text is decrypted if possible; otherwise it stays encrypted.
    """
    event = entry.values.get("e", b"")
    with suppress(ValueError):
        event = decrypted_event(conn, keys, event)

    # Keyturn writes only UTF-8, but other bytes must survive, too.
    def kept(raw: bytes) -> str:
        return raw.decode("utf-8", "surrogateescape")

    at, seal = (kept(entry.values.get(name, b"")) for name in ("at", "s"))
    return Row(entry.id, at, kept(event), seal)


def _event_of(row: Row, *, is_logged: bool = True) -> Event | None:
    """Parse an event; None for anything else."""
    if row.leaf:
        # Erased: the leaf has the event without people and texts.
        with suppress(ValueError, NotVerified):
            return opened(json.loads(row.leaf), {})
    with suppress(ValueError):
        event = Event.model_validate_json(row.event)
        return event.with_(at_ms=int(row.at), seq=row.seq)
    if is_logged:
        logger.error("audit.corrupt seq=%s", row.seq)
    return None


def _behind(place: EntryId) -> EntryId:
    return place[0], place[1] + 1


class TreeNote(NamedTuple):
    """The store's copy of the newest checkpoint; empty if no tree is known.

    A malformed size is read as -1.
    """

    origin: str = ""
    size: int = 0
    root: str = ""
    last: str = ""


class TreeNotes:
    """A tenant's note about its audit tree.

    Attributes:
        last: the note that this process last accepted or wrote.
    """

    def __init__(self, conn: Connection, keys: Keys) -> None:
        self._conn = conn
        self._place = keys.audit_tree
        self.last = TreeNote()

    async def read(self) -> TreeNote:
        """Return the store's note."""
        stored = fields(await self._conn.command("HGETALL", self._place))
        if not stored:
            return TreeNote()
        origin, size, root, last = (stored.get(name, b"") for name in _FIELDS)
        return TreeNote(
            origin.decode(errors="replace"),
            int(size) if _NUMBER.fullmatch(size) else -1,
            root.decode(errors="replace"),
            last.decode(errors="replace"),
        )

    async def write(self, origin: str, size: int, root: str, at: EntryId) -> None:
        """Write the tenant's tree and its signed size.

        Args:
            origin: name of the tree.
            size: number of signed entries.
            root: root hash over them.
            at: position of the last one; used by `is_overdue`.
        """
        await self._conn.command(
            "HSET", self._place, "origin", origin, "size", size, "root", root,
            "last", place_text(at),
        )  # fmt: skip
        self.last = TreeNote(origin, size, root, place_text(at))


def place_text(place: EntryId) -> str:
    """Return a stream position in the store's notation."""
    return f"{place[0]}-{place[1]}"


async def is_overdue(conn: Connection, keys: Keys) -> bool:
    """Return whether the oldest unsigned entry has waited too long for a checkpoint.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    last = text(await conn.command("HGET", keys.audit_tree, "last"))
    if not _PLACE.fullmatch(last):
        return False
    start = f"({last}"
    waiting = await conn.command("XRANGE", keys.audit, start, "+", "COUNT", 1)
    oldest = [entry_id(one.id)[0] for one in entries(waiting)]
    return bool(oldest) and await conn.now_ms(keys.audit) - oldest[0] > OVERDUE_MS
