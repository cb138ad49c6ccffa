"""Read a tenant's audit log: signed entries in files, then the entries in the store.

Entries are written to the store with the changes that they record. The writer of the
audit tree copies them into files with each checkpoint, and the store drops them later.
Each step reads the store first and then the files, so every entry is read once, even
while another process writes files and trims the store.

The store also has a note about the audit tree: its name, its signed size, and whether
entries leave the store. The note prevents a gateway without the tree's folder from
starting a new tree, and reveals a folder that lacks entries. Only the signed files
count. A forged note stops entries from being signed, which raises an alarm.

An attacker with write access to Redis can restore an older key or list of freezes whose
seal is valid. The writer of the audit tree therefore keeps an index next to the tree,
with the revoked keys and the epoch of the newest list of freezes, one line of JSON
each. The lines of an entry are on disk before its checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, cast

from keyturn.gateway.approvals.audit_leaf import SealState, opened
from keyturn.gateway.approvals.events import EPOCH, Event, EventName
from keyturn.gateway.errors import AuditUnreadable, NotVerified
from keyturn.gateway.store.audit.files import (
    Damaged,
    Row,
    Segment,
    TreeFiles,
    missing,
    read_segment,
    write_file,
)
from keyturn.gateway.store.audit.files import segments as segments_of
from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    Entry,
    Reply,
    entries,
    fields,
    first_stream,
    text,
)
from keyturn.gateway.store.events.outbox import EntryId, entry_id, event_in
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.event_seals import decrypted_event
from keyturn.gateway.store.sealing.sealing import write_if

_FREEZES = (EventName.FREEZE_SET, EventName.FREEZE_LIFTED)
_FACTS = tuple(f'"{name}"' for name in (EventName.API_KEY_REVOKED, *_FREEZES))


class AuditIndex:
    """The index of all tenants in one process.

    Attributes:
        folder: folder of the files, next to the trees; None: there is no index.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._known: dict[str, int] = {}
        self._sizes: dict[Path, int] = {}
        # Event loops in several threads share one store.
        self._lock = threading.Lock()

    def is_revoked(self, tenant: str, key_id: str) -> bool:
        """Return whether a tenant's log contains the revocation of an API key."""
        return self._newest(tenant, _key_name(tenant, key_id)) > 0

    def freeze_epoch(self, tenant: str) -> int:
        """Return the newest epoch of a tenant's list of freezes; 0 if unknown."""
        return self._newest(tenant, _freezes_name(tenant))

    def write(self, tenant: str, rows: Iterable[Row]) -> None:
        """Write the facts in entries to the file; blocks, so call it in a thread."""
        path = self._path(tenant)
        facts = [fact for row in rows if (fact := _fact_in(row))]
        if path is None or (not facts and path.exists()):
            return
        # A newline before each line: an earlier process may have died in mid-line.
        lines = "".join(f"\n{json.dumps(one)}\n" for one in facts)
        write_file(path, lines.encode(), "ab")

    def exists(self, tenant: str) -> bool:
        """Return whether the file exists."""
        path = self._path(tenant)
        return path is not None and path.exists()

    def _newest(self, tenant: str, name: str) -> int:
        # Another process may have written to the file.
        if (path := self._path(tenant)) is not None:
            with suppress(OSError):
                self._read(path)
        return self._known.get(name, 0)

    def _read(self, path: Path) -> None:
        size = path.stat().st_size
        if size == self._sizes.get(path):
            return
        for line in path.read_bytes().splitlines():
            with suppress(ValueError), self._lock:
                name, number = json.loads(line)
                self._known[name] = max(self._known.get(name, 0), int(number))
        self._sizes[path] = size

    def _path(self, tenant: str) -> Path | None:
        return self.folder / f"{tenant}.facts.jsonl" if self.folder else None


def _fact_in(row: Row) -> tuple[str, int] | None:
    """Return the fact in an entry about an API key or freezes."""
    # The event's name may also occur in a person's text, so parse the event.
    is_sealed = row.state == SealState.SEALED
    if not is_sealed or not any(one in row.event for one in _FACTS):
        return None
    event = Event.model_validate_json(row.event)
    if event.name is EventName.API_KEY_REVOKED:
        return _key_name(event.tenant, event.data.get("key", "")), 1
    if event.name in _FREEZES and (epoch := event.data.get(EPOCH)):
        return _freezes_name(event.tenant), int(epoch)
    return None


def _key_name(tenant: str, key_id: str) -> str:
    return f"api_key {tenant} {key_id}"


def _freezes_name(tenant: str) -> str:
    return f"freezes {tenant}"


logger = logging.getLogger(__name__)

_TRIMMED = 10_000
"""Limit of entries dropped in one step."""

_PAGE = 500

_NUMBER = re.compile("[0-9]{1,12}", re.ASCII)

OVERDUE_MS = 10 * 60 * 1000
"""Age of an unsigned entry from which a missing checkpoint is reported; checkpoints are
made every minute if there are new entries."""

_PLACE = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)


class AuditLog:
    """The audit log of one tenant.

    Args:
        conn: connection to the store.
        keys: keys of the tenant.
        folder: folder of the files; None: the whole log is in the store.
    """

    def __init__(self, conn: Connection, keys: Keys, folder: Path | None) -> None:
        self._conn = conn
        self._keys = keys
        self._files = TreeFiles(folder, keys.tenant) if folder else None

    async def append(self, event: Event) -> None:
        """Write an entry that belongs to no other change.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        await write_if(self._conn, self._keys, [], audit=[event])

    async def trim(self, kept: timedelta, *, before: EntryId | None = None) -> None:
        """Drop old entries from the store, a few thousand at most.

        Args:
            kept: retention of entries.
            before: a position; the entry there and all later ones stay.
        """
        now_ms = await self._conn.now_ms(self._keys.audit)
        oldest = (max(0, now_ms - int(kept.total_seconds() * 1000)), 0)
        first = oldest if before is None else min(oldest, before)
        # Exact trimming of a long stream would block the server. "~" with LIMIT removes
        # whole nodes, a part in each sweep, so some entries stay a little longer.
        oldest_kept: list[Argument] = ["MINID", "~", place_text(first)]
        await self._conn.command(
            "XTRIM", self._keys.audit, *oldest_kept, "LIMIT", _TRIMMED
        )

    async def end(self) -> str:
        """Return the position of the newest entry; `entries` can continue after it."""
        last, found = await self._snapshot("XREVRANGE", "+", "-", 1)
        newest = entry_id(found[0].seq) if found else (0, 0)
        return place_text(max(newest, last))

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
                event = event_of(row)
                if event is not None:
                    yield event

    async def rows(
        self, *, since_ms: int = 0, until_ms: int | None = None, after: str = ""
    ) -> AsyncGenerator[Row]:
        """Yield the raw entries; see `entries`."""
        # Stream ids start with the server's time in milliseconds.
        low = behind(entry_id(after)) if after else (since_ms, 0)
        end = "+" if until_ms is None else f"({until_ms}-0"
        while until_ms is None or low < (until_ms, 0):
            last, found = await self._snapshot("XRANGE", place_text(low), end, _PAGE)
            if last >= low:
                high = behind(last)
                limit = high if until_ms is None else min(high, (until_ms, 0))
                async for row in self._in_files(low, limit):
                    yield row
                low = high
                continue
            for row in found:
                yield row
            if len(found) < _PAGE:
                return
            # Continue after the last id, not by count: the log grows and is trimmed
            # concurrently.
            low = behind(entry_id(found[-1].seq))

    async def live(self, after: EntryId) -> AsyncGenerator[Row]:
        """Yield the store's entries after a position, in files or not."""
        start = place_text(behind(after))
        while found := entries(
            await self._conn.command(
                "XRANGE", self._keys.audit, start, "+", "COUNT", _PAGE
            )
        ):
            for entry in found:
                yield row_of(self._conn, self._keys, entry)
            start = f"({found[-1].id}"

    async def keeps(self, place: str) -> bool:
        """Return whether all events after a position are still in the store."""
        reply = await self._conn.command(
            "XRANGE", self._keys.audit, "-", "+", "COUNT", 1
        )
        oldest = entries(reply)
        return bool(oldest) and entry_id(oldest[0].id) <= entry_id(place)

    async def follow(
        self, after: str, *, block_ms: int | None = None
    ) -> tuple[list[Event], str]:
        """Return the store's events after a position, and the position of the last one.

        With "" as the position, returns no events, and the position of the newest one.
        Waits up to ``block_ms`` for the first event; None does not wait. Invalid
        entries are skipped: readers of whole entries report them.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        key = self._keys.audit
        if not after:
            newest = await self._conn.command("XREVRANGE", key, "+", "-", "COUNT", 1)
            return [], next((one.id for one in entries(newest)), "0-0")
        waits: list[Argument] = [] if block_ms is None else ["BLOCK", block_ms]
        reply = await self._conn.command(
            "XREAD", "COUNT", _PAGE, *waits, "STREAMS", key, after
        )
        found, events = first_stream(reply), list[Event]()
        for entry in found:
            with suppress(KeyError, ValueError):
                events.append(event_in(self._conn, self._keys, entry))
        return events, found[-1].id if found else after

    async def newest(self, limit: int) -> AsyncGenerator[Event]:
        """Yield up to ``limit`` entries, newest first.

        Entries are read on demand, so the caller may stop early. Corrupt entries are
        logged with their position, and skipped.

        Raises:
            StoreUnavailable: as `entries` does.
        """
        rows = self._newest_rows()
        async with aclosing(rows):
            async for row in rows:
                if limit <= 0:
                    return
                limit -= 1
                if (event := event_of(row)) is not None:
                    yield event

    async def _newest_rows(self) -> AsyncGenerator[Row]:
        end = "+"
        while True:
            last, found = await self._snapshot("XREVRANGE", end, "-", _PAGE)
            rows = [one for one in found if entry_id(one.seq) > last]
            for row in rows:
                yield row
            if rows:
                end = f"({rows[-1].seq}"
            if len(rows) < _PAGE:
                break
        high = behind(last) if end == "+" else entry_id(end.removeprefix("("))
        async for row in self._in_files((0, 0), high, is_reversed=True):
            yield row

    async def segments(self) -> list[Segment]:
        """Return the segments in the folder, oldest first."""
        files = self._files
        return await asyncio.to_thread(segments_of, files) if files else []

    async def _in_files(
        self, low: EntryId, high: EntryId, *, is_reversed: bool = False
    ) -> AsyncGenerator[Row]:
        """Yield the entries in files from a position up to another one, exclusive."""
        files, listed = self._files, await self.segments()
        if files is None:
            return
        start, end = [
            await asyncio.to_thread(files.index_of, one) for one in (low, high)
        ]
        if start < end and not listed:
            raise missing(files, start)
        for one in reversed(listed) if is_reversed else listed:
            if start < one.end and one.start < end:
                rows = await self._of_segment(files, one)
                part = rows[max(0, start - one.start) : end - one.start]
                for row in reversed(part) if is_reversed else part:
                    yield row

    async def _of_segment(self, files: TreeFiles, segment: Segment) -> list[Row]:
        try:
            return await asyncio.to_thread(read_segment, files, segment)
        except Damaged:
            # The segment may have expired since it was listed.
            if (left := await self.segments()) and segment.start < left[0].start:
                return []
            raise

    async def _snapshot(
        self, command: str, start: Argument, end: Argument, count: int
    ) -> tuple[EntryId, list[Row]]:
        """Return the position of the newest entry in files, and entries of the store.

        Raises:
            AuditUnreadable: when entries have left the store for another folder.
        """
        key = self._keys.audit_tree
        noted, reply = await self._conn.transaction(
            ["HMGET", key, "moved", "last"],
            [command, self._keys.audit, start, end, "COUNT", count],
        )
        files = self._files
        last = await asyncio.to_thread(lambda: files.last) if files else (0, 0)
        moved, at = (one or b"" for one in cast("list[bytes | None]", noted))
        place = at.decode(errors="replace")
        if moved and _PLACE.fullmatch(place) and entry_id(place) > last:
            raise AuditUnreadable(
                f"The entries of the audit log up to {place} are in files; set "
                "'audit_folder' to their folder."
            )
        return last, self._rows(reply)

    def _rows(self, reply: Reply) -> list[Row]:
        return [row_of(self._conn, self._keys, one) for one in entries(reply)]


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


def event_of(row: Row) -> Event | None:
    """Parse an event; log anything else, and return None."""
    if row.leaf:
        # Erased: the leaf has the event without people and texts.
        with suppress(ValueError, NotVerified):
            return opened(json.loads(row.leaf), {})
    with suppress(ValueError):
        event = Event.model_validate_json(row.event)
        return event.with_(at_ms=int(row.at), seq=row.seq)
    logger.error("audit.corrupt seq=%s", row.seq)
    return None


def behind(place: EntryId) -> EntryId:
    """Return the position that follows another one."""
    return place[0], place[1] + 1


class TreeNote(NamedTuple):
    """The store's copy of the newest checkpoint; empty if no tree is known.

    ``moved`` is "1" if signed entries leave the store. A malformed size is read as -1.
    """

    origin: str = ""
    size: int = 0
    root: str = ""
    last: str = ""
    moved: str = ""

    @classmethod
    async def read(cls, conn: Connection, keys: Keys) -> TreeNote:
        """Return the store's note of a tenant's tree."""
        stored = fields(await conn.command("HGETALL", keys.audit_tree))
        words = {name: one.decode(errors="replace") for name, one in stored.items()}
        size = words.pop("size", "0")
        known = {name: words[name] for name in cls._fields if name in words}
        number = int(size) if _NUMBER.fullmatch(size) else -1
        return cls(size=number, **known)

    async def write(self, conn: Connection, keys: Keys) -> None:
        """Write the note of a tenant's tree."""
        words: list[Argument] = []
        for name, value in self._asdict().items():
            words += [name, value]
        await conn.command("HSET", keys.audit_tree, *words)


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
