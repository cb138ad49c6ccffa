"""Periodic sweep of a tenant: expire, remind, requeue; safe on any replica."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from keyturn.gateway.approvals import ending, waiting_changes
from keyturn.gateway.approvals.changes import Change, following
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.events.outbox import MANY, drop_idle_readers, trim_outbox
from keyturn.gateway.store.keys import KEEP_MS, RETENTION
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

Due = TypeVar("Due")

_BATCH = 100
_ALARM_S = 600.0


class Sweeper(TenantService):
    """Every replica may sweep at any time; each item ends exactly once."""

    def __init__(
        self,
        store: Store,
        *,
        tenant: str = "default",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._clock = clock
        self._alarm_at_s = float("-inf")

    async def sweep(self) -> int:
        """End everything that is overdue; return how many items ended."""
        # Replicas need no lock: every change is a compare and set, and the second
        # replica finds nothing to do.
        # Jobs first, because threads wait for them; trimming can wait.
        await self._store.queue(self._keys).requeue_due()
        due = partial(self._store.timers.due, self._keys)
        await _until_none_is_left(due, self.fire)
        overdue = partial(self._store.approvals.overdue, self._keys)
        ended = await _until_none_is_left(overdue, self.expire)
        if not self._store.keeps_tree:  # else an `AuditWriter` does it
            await self._store.audit(self._keys).trim(self._store.audit_kept)
        await self._trim_outbox()
        await self._store.security.tell_left()
        return ended

    async def _trim_outbox(self) -> None:
        """Drop the events that every reader has read; log a reader that lags."""
        conn, keys = self._store.conn, self._keys
        found = await trim_outbox(conn, keys)
        if found.problem and self._clock() >= self._alarm_at_s:
            self._alarm_at_s = self._clock() + _ALARM_S
            logger.error(
                "outbox.long tenant=%s reader=%s events>%d: start what reads as this "
                "reader; a reader that is away for %d days is forgotten",
                keys.tenant,
                found.reader,
                MANY,
                RETENTION.days,
            )
            kind = SecurityKind.STALLED
            stalled = SecurityEvent(kind=kind, tenant=keys.tenant, about="outbox")
            await self._store.security.report(keys, stalled)
            # Their unread events are about records that have expired.
            for reader in await drop_idle_readers(conn, keys, idle_ms=KEEP_MS):
                logger.warning("outbox.reader_forgotten reader=%s", reader)

    async def fire(self, timer: Timer) -> bool:
        """Fire one timer of an approval, once on all replicas.

        Returns:
            False when another replica was faster, or the approval waits no longer.
        """

        async def compute(loaded: Loaded) -> Write | bool:
            # Another replica may have fired it since the list was read. The script
            # repeats the check in the step that writes.
            if not await self._store.timers.is_due(self._keys, timer):
                return False
            change = waiting_changes.fire(loaded.approval, timer.kind, loaded.now_ms)
            if change is None:
                await self._store.timers.drop(self._keys, timer)
            return Write(change) if change else False

        try:
            found = await self._store.approvals.change(timer.approval, compute)
            if found is None:  # there is no such approval any more
                await self._store.timers.drop(self._keys, timer)
        except CorruptRecord as error:
            await self._quarantine(error)
            return False
        return bool(found)

    async def expire(self, approval_id: str) -> int:
        """End the overdue items of one approval, by the store's clock."""

        async def compute(loaded: Loaded) -> Write:
            change = ending.end_overdue(loaded.approval, loaded.now_ms)
            # An abandoned idempotent call runs again, so nothing ends. Writing the
            # record removes its deadline from the index.
            return Write(change or Change(following(loaded.approval)))

        try:
            found = await self._store.approvals.change(approval_id, compute)
        except CorruptRecord as error:
            await self._quarantine(error)
            return 0
        if found is None:
            # The record is gone and only its deadline is left, for instance after a
            # restore.
            await self._store.approvals.forget_overdue(self._keys, approval_id)
            return 0
        return len(found.change.events)

    async def _quarantine(self, error: CorruptRecord) -> None:
        """Set a corrupt record aside, so that it does not block the sweep."""
        log_failure(logger, error, "record.quarantined")
        await self._store.approvals.quarantine(self._keys, error.approval)


async def _until_none_is_left(
    listed: Callable[..., Awaitable[list[Due]]], work: Callable[[Due], Awaitable[int]]
) -> int:
    """Work through the listed entries in batches; return how much was done."""
    done = 0
    while True:
        batch, before = await listed(_BATCH), done
        for one in batch:
            done += await work(one)
        # A full batch that changed nothing would be listed again: leave it to the next
        # sweep.
        if len(batch) < _BATCH or done == before:
            return done
