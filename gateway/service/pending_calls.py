"""List a run's pending calls for a program, and withdraw them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from twokey.gateway.approvals.evidence import redacted
from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.approvals.timing import end_of, is_late
from twokey.gateway.arguments import check_item_ids
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.remote_runs import PendingCall
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.store import Store

_TAKEN_BACK = {ItemState.WITHDRAWN, ItemState.LAPSED}
"""How a call ends that is withdrawn: the latter if people had approved it just then."""


class PendingCalls(TenantService):
    """What waits in the runs of a tenant; ``agents`` ends calls that are withdrawn."""

    def __init__(self, store: Store, agents: AgentService, *, tenant: str) -> None:
        super().__init__(store, tenant=tenant)
        self._agents = agents

    async def of(self, run_ref: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        approvals = self._store.approvals
        keys = self._keys_of(run_ref.agent)
        ids = await approvals.unfinished_of_run(keys, self._tenant, run_ref)
        return tuple(
            _shown(loaded.approval, item)
            for loaded in await approvals.load_each(ids)
            for item in loaded.approval.items
            # What is overdue cannot be decided any more, even if no sweep has ended it
            # yet.
            if item.is_pending and not is_late(loaded.approval, item, loaded.now_ms)
        )

    async def withdraw(
        self, run_ref: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End calls of a run that still wait, and bring its agent back.

        The agent is told that they were withdrawn and did not run.

        Args:
            run_ref: the run.
            item_ids: which; None means all. One that is not among the run's waiting
                calls is left alone.

        Returns:
            The ids of those that were ended now.

        Raises:
            SettingsError: when ``item_ids`` are none.
        """
        check_item_ids(item_ids)
        chosen = await self.end(run_ref, item_ids)
        if not chosen:
            return ()
        job = Job.to_resume(self._tenant, run_ref.agent, run_ref.thread)
        # After the calls have ended: a job before that could bring the agent back too
        # early. It may be queued twice, which does no harm.
        await self._store.queue(self._keys_of(run_ref.agent)).put(job)
        return await self.ended_of(chosen)

    async def end(
        self, run_ref: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End calls of a run as `withdraw` does, and leave its agent alone.

        Returns:
            The ids of those that still waited; people may have decided some of them at
            the same moment, see `ended_of`.
        """
        waiting = [call.item_id for call in await self.of(run_ref)]
        chosen = [one for one in waiting if item_ids is None or one in item_ids]
        if chosen:
            await self._agents.withdraw(frozenset(chosen))
        return tuple(chosen)

    async def ended_of(self, chosen: Sequence[str]) -> tuple[str, ...]:
        """Return those of these calls that were taken back, and so do not run.

        One that people decided and its agent began meanwhile is none of them.
        """
        # By their records: what does not wait may have been approved, and may run.
        ids = dict.fromkeys(approval_of(item_id)[0] for item_id in chosen)
        ended = {
            item.id
            for loaded in await self._store.approvals.load_each(ids)
            for item in loaded.approval.items
            if item.state in _TAKEN_BACK
        }
        return tuple(one for one in chosen if one in ended)


def _shown(approval: Approval, item: Item) -> PendingCall:
    return PendingCall(
        item_id=item.id,
        tool=item.tool,
        args=redacted(item.args, item.redact),
        description=item.summary,
        agent=approval.agent,
        tier=item.tier,
        channel=approval.channel,
        opened_at=datetime.fromtimestamp(approval.created_at_ms / 1000, UTC),
        expires_at=datetime.fromtimestamp(end_of(approval, item) / 1000, UTC),
    )
