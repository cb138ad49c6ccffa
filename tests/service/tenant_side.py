"""One side of a store that several tenants share."""

from __future__ import annotations

from dataclasses import dataclass

from keyturn.gateway.approvals.decisions import Click
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.wire import ClaimRequest, TurnRef
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.service.harness import DAN, RULES
from tests.service.held_calls import held_call, read
from tests.streams import audit_entries

TENANTS = ("hooli", "default", "acme")
"""Each on another master of a cluster of three."""


@dataclass
class TenantSide:
    """Agents and reviewers of one tenant, whose agents and threads are named alike."""

    store: Store
    tenant: str
    policy: Policy = RULES

    def __post_init__(self) -> None:
        store, tenant = self.store, self.tenant
        self.keys = store.keys_of_tenant(tenant)
        self.agents = AgentService(store, lambda: self.policy, tenant=tenant)
        self.reviews = ReviewService(store, lambda: self.policy, tenant=tenant)

    async def ask(self, thread: str = "t1") -> tuple[Click, ClaimRequest]:
        """Request a refund as the agent; return a click on it and its claim."""
        await self.reviews.ask_agent(
            "support", thread, "hi", requester=DAN, origin=None
        )
        ref = TurnRef(agent="support", thread=thread, message_id="m1")
        return await held_call(self.agents, self.reviews, ref)

    async def approval(self, approval_id: str) -> Approval:
        """Read an approval."""
        return await read(self.reviews, approval_id)

    async def overdue(self, approval_id: str) -> None:
        """Move the clock past an approval's deadline."""
        await self.store.conn.transaction(
            ["HSET", self.keys.head(approval_id), "expires", 1],
            ["ZADD", self.keys.expiry, 1, self.keys.listed(approval_id)],
        )

    async def told(self) -> list[EventName]:
        """Return the entries of the tenant's audit log about its approvals."""
        entries = await audit_entries(self.store.conn, self.keys)
        return [one.name for one in entries if one.approval]
