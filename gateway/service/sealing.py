"""Move the audit log out of the store into sealed segments, a part at a time.

One process seals a shard at a time, under a lease. Each step can be repeated: entries
leave the store only behind a segment that is on the disk and noted in the store, and a
segment that was written and not noted is taken as it is, if it holds what the store
holds.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from twokey.gateway.errors import AuditUnreadable, ThreadUnavailable
from twokey.gateway.secret_file import sync_folder
from twokey.gateway.store import audit_segments
from twokey.gateway.store.audit_log import AuditLog, Sealed, row_of
from twokey.gateway.store.audit_segments import Header, Row
from twokey.gateway.store.audit_tree import TreeFiles
from twokey.gateway.store.connection import entries, number, text
from twokey.gateway.store.fences import Lease, holding
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.readers import EntryId, entry_id
from twokey.gateway.store.script import Script
from twokey.gateway.store.store import Store
from twokey.gateway.trust.merkle_tree import leaf_hash

logger = logging.getLogger(__name__)

SEGMENT = 10_000
"""Entries of a segment; fewer where the oldest has waited for `SEAL_AFTER`."""

SEAL_AFTER = timedelta(hours=1)

_PAGE = 1000

SEAL = Script("seal", is_fenced=True)
FORGET = Script("forget_segments", is_fenced=True)


class Signed(NamedTuple):
    """The audit tree of the shard, and the place up to which it is signed."""

    files: TreeFiles
    last: EntryId


async def seal(
    store: Store, keys: Keys, folder: Path, *, signed: Signed | None = None
) -> None:
    """Seal what is due of a shard's audit log, and drop it from the store.

    Whole segments whose time is over are removed.

    Args:
        store: where the log is.
        keys: of the shard.
        folder: of the segments.
        signed: what the tree has of it, and no entry behind that is sealed; None where
            there is no tree.

    Raises:
        StoreUnavailable: when the store does not answer, or a segment is not what it
            should be; nothing was dropped then.
        OSError: when the folder cannot be written; as above.
    """
    log = store.audit(keys)
    sealed = await log.sealed()
    # Again with each look: a process may have ended before it did so.
    if sealed.number:
        await log.trim_to((sealed.last[0], sealed.last[1] + 1))
    now_ms = await store.conn.now_ms(keys.audit)
    oldest_ms = now_ms - int(store.audit_kept.total_seconds() * 1000)
    is_due = await _is_due(store, keys, sealed, now_ms)
    if not is_due and not await _is_over(folder, keys, sealed, oldest_ms):
        return
    try:
        # The lease of a thread is used, with an agent name that no agent has.
        async with store.threads.lease(keys, "", "", "audit") as lease:
            with holding(lease):
                sealer = _Sealer(store, keys, folder, lease, signed)
                await sealer.remove(oldest_ms)
                # Again: another process may have sealed in between.
                if await _is_due(store, keys, await log.sealed(), now_ms):
                    await sealer.seal()
    except ThreadUnavailable:
        logger.debug("audit.sealed_elsewhere shard=%s", keys.shard)


async def _is_due(store: Store, keys: Keys, sealed: Sealed, now_ms: int) -> bool:
    """Return whether a segment is full, or its oldest entry has waited long enough."""
    start = f"({sealed.last[0]}-{sealed.last[1]}"
    found, length = await store.conn.transaction(
        ["XRANGE", keys.audit, start, "+", "COUNT", 1], ["XLEN", keys.audit]
    )
    rows = entries(found)
    if not rows:
        return False
    waited_ms = now_ms - entry_id(rows[0].id)[0]
    # The length counts some that are sealed already: the store drops whole nodes.
    return (
        number(length) > SEGMENT + 200 or waited_ms > SEAL_AFTER.total_seconds() * 1000
    )


async def _is_over(folder: Path, keys: Keys, sealed: Sealed, oldest_ms: int) -> bool:
    """Return whether the time of the oldest segment is over; the newest is kept."""
    if sealed.first >= sealed.number:
        return False
    header = await asyncio.to_thread(
        audit_segments.read_header, folder, keys.shard, sealed.first
    )
    return header is not None and entry_id(header.last)[0] < oldest_ms


class _Sealer:
    """One holder of the lease."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        folder: Path,
        lease: Lease,
        signed: Signed | None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._folder = folder
        self._lease = lease
        self._signed = signed
        self._log: AuditLog = store.audit(keys)

    async def remove(self, oldest_ms: int) -> None:
        """Remove whole segments whose time is over."""
        sealed = await self._log.sealed()
        first = sealed.first
        while first < sealed.number:
            header = await asyncio.to_thread(
                audit_segments.read_header, self._folder, self._keys.shard, first
            )
            if header is None or entry_id(header.last)[0] >= oldest_ms:
                break
            first += 1
        if first > sealed.first:
            # Before the files: a reader that misses one looks here.
            await FORGET(self._store.conn, sealed=self._keys.audit_sealed, first=first)
        if first > 1:
            await asyncio.to_thread(
                audit_segments.remove_segments, self._folder, self._keys.shard, first
            )

    async def seal(self) -> None:
        """Seal one segment, and drop it from the store."""
        sealed = await self._log.sealed()
        await self._require_newest(sealed)
        header = await self._written(sealed) or await self._write(sealed)
        if header is None:
            return
        reply = await SEAL(
            self._store.conn,
            sealed=self._keys.audit_sealed,
            number=header.number,
            last=header.last,
            digest=header.digest,
        )
        if text(reply[0]) != "done":
            return
        logger.info(
            "audit.sealed shard=%s number=%d entries=%d",
            self._keys.shard,
            header.number,
            header.entries,
        )
        place = entry_id(header.last)
        await self._log.trim_to((place[0], place[1] + 1))

    async def _require_newest(self, sealed: Sealed) -> None:
        """Check that the newest segment is in this folder.

        Raises:
            AuditUnreadable: when it is not: the folder is another one, or is not
                mounted, and the chain would go on in a second place.
        """
        if not sealed.number:
            return
        shard, newest = self._keys.shard, sealed.number
        header = await asyncio.to_thread(
            audit_segments.read_header, self._folder, shard, newest
        )
        if header is None or header.digest != sealed.digest:
            raise audit_segments.missing(self._folder, shard, newest)

    async def _written(self, sealed: Sealed) -> Header | None:
        """Return the next segment where it was written and not noted.

        Raises:
            AuditUnreadable: when it is not of this store's log.
        """
        header = await asyncio.to_thread(
            audit_segments.read_header,
            self._folder,
            self._keys.shard,
            sealed.number + 1,
        )
        if header is None:
            return None
        rows = await self._rows(sealed.last, until=entry_id(header.last))
        expected = rows and audit_segments.header_of(
            self._keys.shard,
            sealed.number + 1,
            sealed.digest,
            rows,
            # An older version may have written it, and been ended before it said so.
            format_=header.format,
        )
        path = audit_segments.segment_path(
            self._folder, self._keys.shard, header.number
        )
        if header != expected:
            raise AuditUnreadable(
                f"The segment {str(path)!r} is not of this store's audit log: the "
                "store was restored from an older copy, or another store has the same "
                "'audit_folder'. Nothing is sealed or dropped; move the files from "
                "this number on away, or set another folder."
            )
        # Its content as well: it was cut off on its way, maybe.
        await asyncio.to_thread(audit_segments.read_segment, self._folder, header)
        await asyncio.to_thread(sync_folder, self._folder)
        return header

    async def _write(self, sealed: Sealed) -> Header | None:
        signed = self._signed
        rows = await self._rows(sealed.last, most=signed.last if signed else None)
        if not rows:
            return None
        header = audit_segments.header_of(
            self._keys.shard, sealed.number + 1, sealed.digest, rows
        )
        # A failover could lose what is in the file, and its segment fits no log then.
        await self._store.conn.confirm(self._keys.audit)
        self._lease.check()
        await asyncio.to_thread(self._put, header, rows)
        return header

    def _put(self, header: Header, rows: list[Row]) -> None:
        audit_segments.remove_rough(self._folder, self._keys.shard)
        audit_segments.write_segment(self._folder, header, rows)

    async def _rows(
        self,
        after: EntryId,
        *,
        until: EntryId | None = None,
        most: EntryId | None = None,
    ) -> list[Row]:
        """Return what is in the store behind a place.

        Args:
            after: the place.
            until: a place up to which all of it is wanted; None for a segment.
            most: a place behind which nothing is wanted.
        """
        found: list[Row] = []
        last = until or most
        end = "+" if last is None else f"{last[0]}-{last[1]}"
        start = f"({after[0]}-{after[1]}"
        while until is not None or len(found) < SEGMENT:
            size = _PAGE if until is not None else min(_PAGE, SEGMENT - len(found))
            page = entries(
                await self._store.conn.command(
                    "XRANGE", self._keys.audit, start, end, "COUNT", size
                )
            )
            found += [row_of(self._store.conn, self._keys, one) for one in page]
            if len(page) < size:
                break
            start = f"({page[-1].id}"
        return await asyncio.to_thread(self._with_states, found)

    def _with_states(self, rows: list[Row]) -> list[Row]:
        """Return entries with what the tree says of their seals.

        Raises:
            AuditUnreadable: when an entry is not what the tree has.
        """
        if self._signed is None or not rows:
            return rows
        files = self._signed.files
        start = files.index_of(entry_id(rows[0].seq))
        records = files.records(start, start + len(rows))
        found: list[Row] = []
        for index, (row, record) in enumerate(zip_longest(rows, records), start=start):
            if row is None or record is None:
                break
            one = row._replace(state=record.state)
            if (entry_id(row.seq), leaf_hash(one.leaf_text)) != (
                record.place, record.leaf,
            ):  # fmt: skip
                raise AuditUnreadable(
                    f"The entry {row.seq} of the store is not what the audit tree has "
                    f"as entry {index}: one of both was changed. Nothing is sealed or "
                    "dropped; 'twokey audit verify' says more."
                )
            found.append(one)
        return found
