"""Serve the clock on any replica: end what is overdue, remind, put jobs back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gateway.approvals.events import Event, EventName
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import Approval
from gateway.errors import NewerRecord, UnreadableRecord
from gateway.failures import log_failure
from gateway.service.facts import item_event
from gateway.store.jobs import Job, JobKind
from gateway.store.keys import RETENTION, Keys
from gateway.store.outbox import trim_audit
from gateway.store.readers import MANY, forget_dead_readers, trim_outbox
from gateway.store.store import Store
from gateway.store.timers import Timer, TimerKind
from gateway.store.unreadable import put_aside

logger = logging.getLogger(__name__)

_ATTEMPTS = 16
_BATCH = 100
_ALARM_S = 600.0
_RUNG = {
    TimerKind.REMIND: EventName.APPROVAL_REMINDED,
    TimerKind.ESCALATE: EventName.APPROVAL_ESCALATED,
    TimerKind.RELEASE: EventName.APPROVAL_RELEASED,
    TimerKind.DOUBT: EventName.APPROVAL_UNSETTLED,
}


class Sweeper:
    """Every replica may sweep at any time; each item ends exactly once."""

    def __init__(
        self, store: Store, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._clock = clock
        self._alarmed_at = -_ALARM_S

    async def sweep(self) -> int:
        """End everything overdue in all shards; return how many items ended."""
        ended = 0
        for keys in self._store.every_shard():
            await self._store.queue(keys).requeue_due()
            await self._ring_all(keys)
            ended += await self._expire_all(keys)
            await trim_audit(self._store.conn, keys, self._store.audit_kept)
            await self._trim_outbox(keys)
        return ended

    async def _ring_all(self, keys: Keys) -> None:
        """Ring what is due in a shard; what a newer version set is left to it."""
        left = 0
        while True:
            batch = await self._store.timers.due(keys, _BATCH, skip=left)
            before = left
            for timer in batch:
                try:
                    await self.ring(keys, timer)
                except NewerRecord:
                    left += 1
            if len(batch) < _BATCH or left == before:
                return

    async def _trim_outbox(self, keys: Keys) -> None:
        """Drop what every reader has read; say who keeps too much from being so."""
        conn = self._store.conn
        behind = await trim_outbox(conn, keys)
        if behind and self._clock() - self._alarmed_at >= _ALARM_S:
            self._alarmed_at = self._clock()
            logger.error(
                "outbox.long shard=%s reader=%s events>%d: start what reads as this "
                "reader; a reader that is away for %d days is forgotten",
                keys.shard,
                behind,
                MANY,
                RETENTION.days,
            )
            await forget_dead_readers(conn, keys)

    async def ring(self, keys: Keys, timer: Timer) -> bool:
        """Remind people of one approval, or call others; once on all replicas."""
        try:
            loaded = await self._store.approvals.load(timer.approval)
        except UnreadableRecord as error:
            await self._put_aside(keys, error)
            return False
        if loaded is None:
            await self._store.timers.drop(keys, timer)
            return False
        event = _rung(loaded.approval, timer.kind)
        return await self._store.timers.ring(keys, timer, event)

    async def _expire_all(self, keys: Keys) -> int:
        """End everything overdue in a shard, in batches while that gets further."""
        ended = left = 0
        while True:
            batch = await self._store.approvals.overdue(keys, _BATCH, skip=left)
            before = ended, left
            for approval_id in batch:
                try:
                    ended += await self.expire(keys, approval_id)
                except NewerRecord as error:
                    logger.warning("record.newer %s", error)
                    left += 1
            if len(batch) < _BATCH or (ended, left) == before:
                return ended

    async def expire(self, keys: Keys, approval_id: str) -> int:
        """End what is overdue in one approval by the store's clock."""
        for _ in range(_ATTEMPTS):
            try:
                loaded = await self._store.approvals.load(approval_id)
            except UnreadableRecord as error:
                await self._put_aside(keys, error)
                return 0
            if loaded is None:
                await self._store.approvals.forget_overdue(keys, approval_id)
                return 0
            approval = loaded.approval
            word, count = await self._store.approvals.expire(
                approval,
                expired=_events(approval, ItemState.PENDING, EventName.ITEM_EXPIRED),
                lapsed=_events(approval, ItemState.AUTHORIZED, EventName.ITEM_LAPSED),
                doubted=_doubtful(approval),
                job=Job(
                    kind=JobKind.RESUME,
                    tenant=approval.tenant,
                    agent=approval.home.agent,
                    thread=approval.home.thread,
                ),
            )
            if word != "moved":
                return count
        return 0

    async def _put_aside(self, keys: Keys, error: UnreadableRecord) -> None:
        """Keep a record that nobody can read from stopping the clock of all others."""
        log_failure(logger, error, "record.put_aside")
        await put_aside(self._store.conn, keys, error.approval)


def _events(approval: Approval, state: ItemState, name: EventName) -> dict[int, Event]:
    return {
        item.index: item_event(approval, item, name)
        for item in approval.items
        if item.state is state
    }


def _rung(approval: Approval, kind: TimerKind) -> Event:
    called = approval.waiting.called if kind is TimerKind.ESCALATE else ()
    return Event(
        name=_RUNG[kind],
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        outer=approval.outer,
        approval=approval.id,
        version=approval.version,
        policy_digest=approval.policy_digest,
        channel=approval.channel,
        reason=", ".join(called),
    )


def _doubtful(approval: Approval) -> dict[int, Event]:
    # An idempotent tool is simply run again by whoever resumes the thread.
    return {
        index: event
        for index, event in _events(
            approval, ItemState.EXECUTING, EventName.ITEM_IN_DOUBT
        ).items()
        if not approval.items[index].idempotent
    }
