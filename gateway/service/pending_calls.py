"""List a run's pending calls for a program, and withdraw them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from twokey.gateway.approvals.evidence import redacted
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import end_of, is_late
from twokey.gateway.protocol.records import Record, RunRef
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.store import Store


class PendingCall(Record):
    """One call that waits for people, as a reviewer may see it.

    Attributes:
        item_id: names the call, also to `Twokey.withdraw`.
        tool: what would run.
        args: with which arguments; what the policy redacts is hidden.
        description: what the policy says of it, else what the agent says, marked as
            its words; "" for nothing.
        agent: who asks, which may be an agent inside another one's tool.
        tier: what the call needs.
        channel: where its card is.
        opened_at: since when it waits (UTC).
        expires_at: until when people can decide (UTC); then it does not run.
    """

    item_id: str
    tool: str
    args: JsonObject
    description: str
    agent: str
    tier: Tier
    channel: str
    opened_at: datetime
    expires_at: datetime


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
        """
        waiting = [call.item_id for call in await self.of(run_ref)]
        chosen = frozenset(
            one for one in waiting if item_ids is None or one in item_ids
        )
        if not chosen:
            return ()
        await self._agents.withdraw(chosen)
        job = Job.to_resume(self._tenant, run_ref.agent, run_ref.thread)
        # After the calls have ended: a job before that could bring the agent back too
        # early. It may be queued twice, which does no harm.
        await self._store.queue(self._keys_of(run_ref.agent)).put(job)
        # Read again: people may have decided one of them at the same moment.
        left = {call.item_id for call in await self.of(run_ref)}
        return tuple(one for one in waiting if one in chosen and one not in left)


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
