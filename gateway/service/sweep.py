"""Serve the clock: end what is overdue, put failed jobs back, on any replica."""

from __future__ import annotations

from gateway.approvals.events import Event, EventName
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import Approval
from gateway.service.facts import item_event
from gateway.store.jobs import Job, JobKind
from gateway.store.store import Store

_ATTEMPTS = 16
_BATCH = 100


class Sweeper:
    """Every replica may sweep at any time; each item ends exactly once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def sweep(self) -> int:
        """End everything overdue in all shards; return how many items ended."""
        ended = 0
        for keys in self._store.every_shard():
            await self._store.queue(keys).requeue_due()
            for approval_id in await self._store.approvals.overdue(keys, _BATCH):
                ended += await self.expire(approval_id)
        return ended

    async def expire(self, approval_id: str) -> int:
        """End what is overdue in one approval by the store's clock."""
        for _ in range(_ATTEMPTS):
            loaded = await self._store.approvals.load(approval_id)
            if loaded is None:
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
                    agent=approval.agent,
                    thread=approval.thread,
                ),
            )
            if word != "moved":
                return count
        return 0


def _events(approval: Approval, state: ItemState, name: EventName) -> dict[int, Event]:
    return {
        item.index: item_event(approval, item, name)
        for item in approval.items
        if item.state is state
    }


def _doubtful(approval: Approval) -> dict[int, Event]:
    # An idempotent tool is simply run again by whoever resumes the thread.
    return {
        index: event
        for index, event in _events(
            approval, ItemState.EXECUTING, EventName.ITEM_IN_DOUBT
        ).items()
        if not approval.items[index].idempotent
    }
