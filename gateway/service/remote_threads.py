"""Serve programs in other processes that run threads themselves."""

from __future__ import annotations

from typing import Literal, cast

from twokey.gateway.clock import now_s
from twokey.gateway.errors import LeaseLost
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.thread_api import (
    LeaseQuestion,
    LeaseRef,
    LeaseReply,
    SettleQuestion,
)
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.dropped_calls import DroppedCalls
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.fences import Lease
from twokey.gateway.store.store import Store

_REQUEST_S = 3600.0
"""How long a lease counts within one request at most; the store knows its real end."""


class RemoteThreads(TenantService):
    """Leases on threads that other processes run, and the calls they dropped.

    A process is told nothing about runs that are not named in its question; whether it
    speaks for that run's agent is checked before.
    """

    def __init__(self, store: Store, agents: AgentService, *, tenant: str) -> None:
        super().__init__(store, tenant=tenant)
        self._dropped = DroppedCalls(store, agents)

    async def lease(self, asked: LeaseQuestion) -> LeaseReply:
        """Take, keep, renumber or give back a lease."""
        return await self._step(asked, asked.verb)

    async def take_offered(self, run: RunRef, token: str) -> LeaseReply:
        """Take a lease for a holder who waits, unless somebody has it by now.

        That may be the same one: it gave up waiting, took the lease itself, and works
        under its fence. With another one it would lose it in the middle.
        """
        asked = LeaseQuestion(run=run, verb="take", token=token)
        return await self._step(asked, "take_free")

    async def _step(self, asked: LeaseQuestion, verb: str) -> LeaseReply:
        agent, thread = asked.run.agent, asked.run.thread
        keys = self._keys_of(agent)
        state, fence = await self._store.threads.lease_step(
            keys, self._tenant, agent, thread,
            verb=verb, token=asked.token, above=asked.above,
        )  # fmt: skip
        held = cast("Literal['held', 'busy', 'lost', 'free']", state)
        return LeaseReply(
            state=held,
            fence=fence if held == "held" else 0,
            name=keys.lease(self._tenant, agent, thread).rpartition(":")[2],
            lease_s=self._store.lease_ms / 1000,
        )

    def held(self, ref: LeaseRef) -> Lease:
        """Return the lease that a request is made under, for its fenced writes.

        Whether it still stands is not asked: each write compares its fence.
        """
        return Lease(
            self.lease_key(ref.run),
            ref.token,
            fence=ref.fence,
            ends_s=now_s() + _REQUEST_S,
            renumber=_cannot_renumber,
        )

    def lease_key(self, run: RunRef) -> str:
        """Return where the store keeps who holds the lease on a thread."""
        return self._keys_of(run.agent).lease(self._tenant, run.agent, run.thread)

    async def settle(self, asked: SettleQuestion) -> None:
        """End what a resting thread does not ask about any more."""
        run = asked.run
        keys = self._keys_of(run.agent)
        await self._dropped.end(
            keys, self._tenant, run, asked.asked, is_finished=asked.is_finished
        )


async def _cannot_renumber(_lease: Lease, _above: int) -> int:
    # Only its holder, which has the checkpoint database, asks for another fence.
    raise LeaseLost
