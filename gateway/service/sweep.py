"""Periodic sweep of a shard: expire, remind, requeue; safe on any replica."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from twokey.gateway.approvals import deadline_changes, ending
from twokey.gateway.approvals.changes import Change, following
from twokey.gateway.approvals.security import SecurityEvent, SecurityKind
from twokey.gateway.errors import AuditUnreadable, CorruptRecord, NewerRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.service.sealing import seal
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.keys import KEEP_MS, RETENTION, Keys
from twokey.gateway.store.quarantine import quarantine
from twokey.gateway.store.readers import MANY, drop_idle_readers, trim_outbox
from twokey.gateway.store.store import Store
from twokey.gateway.store.timers import Timer

logger = logging.getLogger(__name__)

Due = TypeVar("Due")

_BATCH = 100
_ALARM_S = 600.0


class Sweeper:
    """Every replica may sweep at any time; each item ends exactly once."""

    def __init__(
        self, store: Store, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._clock = clock
        self._alarmed_at: dict[str, float] = {}

    async def sweep(self) -> int:
        """End everything overdue in all shards; return how many items ended."""
        return sum([await self.sweep_shard(keys) for keys in self._store.every_shard()])

    async def sweep_shard(self, keys: Keys) -> int:
        """End everything overdue in one shard; return how many items ended."""
        # Replicas need no lock between them: every change is a compare and set, and who
        # comes second finds nothing left to do.
        # First, because a thread waits for it; trimming can wait for the next sweep.
        await self._store.queue(keys).requeue_due()
        await self._fire_all(keys)
        ended = await self._expire_all(keys)
        await self._trim_audit(keys)
        await self._trim_outbox(keys)
        await self._store.security.tell_left()
        return ended

    async def _fire_all(self, keys: Keys) -> None:
        """Fire what is due in a shard."""
        due = partial(self._store.timers.due, keys)
        await _until_none_is_left(due, partial(self.fire, keys))

    async def _trim_audit(self, keys: Keys) -> None:
        """Drop old audit entries; seal what is to leave the store."""
        # `AuditWriter` does both, behind its checkpoints.
        if self._store.keeps_tree:
            return
        folder = self._store.audit_folder
        if folder is None:
            await self._store.audit(keys).trim(self._store.audit_kept)
            return
        try:
            await seal(self._store, keys, folder)
        except (AuditUnreadable, OSError) as error:
            # The log stays in the store meanwhile, so nothing is lost.
            logger.error("audit.not_sealed shard=%s why=%s", keys.shard, error)  # noqa: TRY400 - it says all

    async def _trim_outbox(self, keys: Keys) -> None:
        """Drop what every reader has read; say who keeps too much from being so."""
        conn = self._store.conn
        found = await trim_outbox(conn, keys)
        if found.problem and self._is_alarm_due(keys):
            logger.error(
                "outbox.long shard=%s reader=%s events>%d: start what reads as this "
                "reader; a reader that is away for %d days is forgotten",
                keys.shard,
                found.reader,
                MANY,
                RETENTION.days,
            )
            # Readers are named after what they are and their tenant.
            tenant = found.reader.partition(":")[2]
            stalled = SecurityEvent(
                kind=SecurityKind.STALLED, tenant=tenant, about="outbox"
            )
            await self._store.security.report(keys, stalled)
            # What they have not read is about nothing that is still there.
            for reader in await drop_idle_readers(conn, keys, idle_ms=KEEP_MS):
                logger.warning("outbox.reader_forgotten reader=%s", reader)

    def _is_alarm_due(self, keys: Keys) -> bool:
        now, before = self._clock(), self._alarmed_at.get(keys.shard)
        if before is not None and now - before < _ALARM_S:
            return False
        self._alarmed_at[keys.shard] = now
        return True

    async def fire(self, keys: Keys, timer: Timer) -> bool:
        """Fire one timer of an approval, once on all replicas.

        Returns:
            False when another replica was faster, or nobody is waited for any more.
        """
        is_known = False

        async def compute(loaded: Loaded) -> Write | None:
            nonlocal is_known
            is_known = True
            # Another replica may have fired it since the list was read. The script
            # compares it again in the step that writes.
            if not await self._store.timers.is_due(keys, timer):
                return None
            change = deadline_changes.fire(loaded.approval, timer.kind, loaded.now_ms)
            if change is None:
                await self._store.timers.drop(keys, timer)
            return Write(change) if change else None

        try:
            found = await self._store.approvals.change(timer.approval, compute)
            # `compute` was not called, so there is no such approval any more.
            if not is_known:
                await self._store.timers.drop(keys, timer)
        except CorruptRecord as error:
            await self._quarantine(keys, error)
            return False
        return found is not None

    async def _expire_all(self, keys: Keys) -> int:
        """End everything overdue in a shard."""
        overdue = partial(self._store.approvals.overdue, keys)
        return await _until_none_is_left(overdue, partial(self.expire, keys))

    async def expire_one(self, approval_id: str) -> None:
        """End what is overdue in one approval, if it is one of ours."""
        keys = self._store.keys_of_approval(approval_id)
        if keys is not None:
            await self.expire(keys, approval_id)

    async def expire(self, keys: Keys, approval_id: str) -> int:
        """End what is overdue in one approval by the store's clock."""
        count = 0

        async def compute(loaded: Loaded) -> Write:
            nonlocal count
            change = ending.end_overdue(loaded.approval, loaded.now_ms)
            count = len(change.events) if change else 0
            # Nothing ends where an idempotent call was abandoned, which is run again.
            # Writing the record again takes that deadline out of the index.
            return Write(change or Change(following(loaded.approval)))

        try:
            found = await self._store.approvals.change(approval_id, compute)
        except CorruptRecord as error:
            await self._quarantine(keys, error)
            return 0
        if found is None:
            # The record is gone and only its deadline is left, for instance after a
            # restore.
            await self._store.approvals.forget_overdue(keys, approval_id)
            return 0
        return count

    async def _quarantine(self, keys: Keys, error: CorruptRecord) -> None:
        """Keep a corrupt record from stopping the clock of all others."""
        log_failure(logger, error, "record.quarantined")
        await quarantine(self._store.members, keys, error.approval)


async def _until_none_is_left(
    listed: Callable[..., Awaitable[list[Due]]], work: Callable[[Due], Awaitable[int]]
) -> int:
    """Work on what is listed, in batches while that gets further; return how much.

    What a newer version wrote is left to it.
    """
    done = left = 0
    while True:
        batch = await listed(_BATCH, skip=left)
        before = done, left
        for one in batch:
            try:
                done += await work(one)
            except NewerRecord as error:
                logger.warning("record.newer %s", error)
                left += 1
        # A full batch that changed nothing would come again: the next sweep tries.
        if len(batch) < _BATCH or (done, left) == before:
            return done
