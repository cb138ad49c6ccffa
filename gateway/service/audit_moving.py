"""Move the audit log out of the store into segments, a part at a time.

The writer of the tree does it, under its lease and lock. Each step can be repeated:
entries leave the store only behind a segment that is on the disk and noted in the
store. A segment that was written and not noted is noted when it is what the tree has.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from datetime import timedelta

from keyturn.gateway.errors import AuditUnreadable
from keyturn.gateway.store import audit_segments
from keyturn.gateway.store.audit_log import AuditLog, SealedNote
from keyturn.gateway.store.audit_segments import Row, Segment
from keyturn.gateway.store.audit_tree import TreeFiles
from keyturn.gateway.store.connection import entries, number
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.readers import EntryId, entry_id
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

SEGMENT = 10_000
"""Entries of a segment; fewer where the oldest has waited for `SEAL_AFTER`."""

SEAL_AFTER = timedelta(hours=1)

SEAL = Script("seal", is_fenced=True)


class AuditMover:
    """Moves the log of one tenant.

    Args:
        store: where the log is.
        keys: of the tenant.
        files: of its tree, which are in the folder of the segments.
    """

    def __init__(self, store: Store, keys: Keys, files: TreeFiles) -> None:
        self._store, self._keys, self._files = store, keys, files
        self._log: AuditLog = store.audit(keys)

    async def is_due(self) -> bool:
        """Return whether `move` has something to do; drop what is in segments."""
        noted = await self._log.noted()
        found = await asyncio.to_thread(audit_segments.segments, self._files)
        last = self._last(found[-1].end if found else 0)
        own = SealedNote()
        if found:
            own = SealedNote(found[0].start, found[-1].end, _text(last))
        if noted != own or await self._over(found):
            return True
        if found:
            # Again with each look: a process may have ended before it did so.
            await self._log.trim_to(_behind(last))
        return await self._is_full(last)

    async def move(self, signed: EntryId) -> bool:
        """Write what is due into a segment, and remove segments whose time is over.

        Args:
            signed: place of the last signed entry; no entry behind it is moved.

        Returns:
            Whether what the store had noted of segments was never written there.

        Raises:
            StoreUnavailable: when the store does not answer.
            AuditUnreadable: when an entry is not what the tree has, or a segment is
                missing; nothing was dropped then.
            OSError: when the folder cannot be written; as above.
        """
        noted = await self._log.noted()
        found = await asyncio.to_thread(audit_segments.segments, self._files)
        # What is not noted was maybe cut off on its way.
        for one in found:
            if one.end > noted.end:
                await asyncio.to_thread(audit_segments.read_segment, self._files, one)
        end = found[-1].end if found else 0
        if end < noted.end:
            raise audit_segments.missing(self._files, end)
        last = self._last(end)
        is_forged = noted != SealedNote() and noted.last != _text(self._last(noted.end))
        is_full = await self._is_full(last)
        if is_full and (rows := await self._rows(last, signed)):
            found.append(await asyncio.to_thread(self._written, rows, end))
        if not found:
            return is_forged
        over = await self._over(found)
        first, end = found[len(over)].start, found[-1].end
        last = self._last(end)
        # Before files are removed: a reader that misses one looks here.
        await SEAL(
            self._store.conn,
            sealed=self._keys.audit_sealed,
            first=first,
            end=end,
            last=_text(last),
        )
        for one in over:
            audit_segments.segment_path(self._files, one).unlink(missing_ok=True)
        tenant = self._keys.tenant
        logger.info("audit.sealed tenant=%s first=%d end=%d", tenant, first, end)
        await self._log.trim_to(_behind(last))
        return is_forged

    def _last(self, end: int) -> EntryId:
        return self._files.place(end - 1) if end else (0, 0)

    def _written(self, rows: list[Row], end: int) -> Segment:
        """Write a segment behind the newest one, whose entries end at an index."""
        start = end or self._files.index_of(entry_id(rows[0].seq))
        what = "Nothing of the audit log leaves the store"
        found = audit_segments.compared(self._files, start, rows, what=what)
        if len(found) < len(rows):
            raise AuditUnreadable(f"{what}: the tree ends before it.")
        segment = Segment(start, start + len(rows))
        audit_segments.write_segment(self._files, segment, found)
        return segment

    async def _is_full(self, last: EntryId) -> bool:
        """Return whether there is a segment behind a place, or an entry that waited."""
        conn, audit = self._store.conn, self._keys.audit
        reply, length = await conn.transaction(
            ["XRANGE", audit, f"({_text(last)}", "+", "COUNT", 1], ["XLEN", audit]
        )
        found = entries(reply)
        if not found:
            return False
        waited_ms = await conn.now_ms(audit) - entry_id(found[0].id)[0]
        # The length counts some that are in files already: the store drops whole nodes.
        is_late = waited_ms > SEAL_AFTER.total_seconds() * 1000
        return is_late or number(length) > SEGMENT + 200

    async def _rows(self, last: EntryId, signed: EntryId) -> list[Row]:
        found: list[Row] = []
        async with aclosing(self._log.live(last)) as rows:
            async for row in rows:
                if entry_id(row.seq) > signed or len(found) == SEGMENT:
                    break
                found.append(row)
        return found

    async def _over(self, found: list[Segment]) -> list[Segment]:
        """Return the segments whose time is over; the newest is kept."""
        kept_ms = int(self._store.audit_kept.total_seconds() * 1000)
        oldest_ms = await self._store.conn.now_ms(self._keys.audit) - kept_ms
        places = await asyncio.to_thread(
            lambda: [self._files.place(one.end - 1) for one in found[:-1]]
        )
        return [
            one
            for one, last in zip(found[:-1], places, strict=True)
            if last < (oldest_ms, 0)
        ]


def _text(place: EntryId) -> str:
    return f"{place[0]}-{place[1]}"


def _behind(place: EntryId) -> EntryId:
    return place[0], place[1] + 1
