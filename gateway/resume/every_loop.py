"""Serve agents from any event loop of this process.

A connection pool belongs to one event loop, yet an agent asks from several: the
worker's, and the background loop that keeps claims alive and serves synchronous
agents (`twokey.agent.bridge`). Each loop gets connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from weakref import WeakKeyDictionary

from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.outcomes import CallOutcome, EditsKnown, LateReport
from twokey.gateway.protocol.records import EditRecord, Result, RunRef
from twokey.gateway.protocol.wire import (
    AgentNote,
    CallBegun,
    CallEnd,
    CallMark,
    ClaimReply,
    ClaimRequest,
    Turn,
    TurnRef,
    Verdict,
)
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.store import Store
from twokey.gateway.triage.port import Triage

_CLOSE_S = 5.0


class EveryLoop:
    """A `twokey.gateway.protocol.port.Gateway` over one store, for every event loop.

    Args:
        store: the store of the loop this is made in.
        policy: returns the policy in force now.
        tenant: whose agents these are.
        triage: asked about the calls that the policy puts to it, in each loop.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        *,
        tenant: str = "default",
        triage: Triage | None = None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._tenant = tenant
        self._triage = triage
        self.main = self._service(store)
        self._services: WeakKeyDictionary[asyncio.AbstractEventLoop, AgentService]
        self._services = WeakKeyDictionary()
        self._services[asyncio.get_running_loop()] = self.main
        self._stores: list[tuple[asyncio.AbstractEventLoop, Store]] = []

    async def close(self) -> None:
        """Close the connections of the other loops; the given store stays open."""
        for loop, store in self._stores:
            if not loop.is_running():
                continue
            closing = asyncio.run_coroutine_threadsafe(store.close(), loop)
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.wrap_future(closing)
        self._stores.clear()

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """See `twokey.gateway.protocol.port.Gateway.submit`."""
        return await self._here().submit(turn)

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """See `twokey.gateway.protocol.port.Gateway.claim`."""
        return await self._here().claim(request)

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """See `twokey.gateway.protocol.port.Gateway.heartbeat`."""
        return await self._here().heartbeat(item_id, fence)

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """See `twokey.gateway.protocol.port.Gateway.finish`."""
        return await self._here().finish(item_id, fence, result)

    async def release(self, item_id: str, fence: int) -> None:
        """See `twokey.gateway.protocol.port.Gateway.release`."""
        await self._here().release(item_id, fence)

    async def mark(self, mark: CallMark) -> CallBegun:
        """See `twokey.gateway.protocol.port.Gateway.mark`."""
        return await self._here().mark(mark)

    async def ended(self, end: CallEnd) -> None:
        """See `twokey.gateway.protocol.port.Gateway.ended`."""
        await self._here().ended(end)

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """See `twokey.gateway.protocol.port.Gateway.outcomes`."""
        return await self._here().outcomes(ref)

    async def supersede(self, ref: TurnRef) -> None:
        """See `twokey.gateway.protocol.port.Gateway.supersede`."""
        await self._here().supersede(ref)

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """See `twokey.gateway.protocol.port.Gateway.history`."""
        return await self._here().history(run, within)

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """See `twokey.gateway.protocol.port.Gateway.edits_known`."""
        return await self._here().edits_known(ref, edits)

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """See `twokey.gateway.protocol.port.Gateway.late_reports`."""
        return await self._here().late_reports(ref, item_ids)

    async def note(self, agent: str) -> AgentNote:
        """See `twokey.gateway.protocol.port.Gateway.note`."""
        return await self._here().note(agent)

    def _service(self, store: Store) -> AgentService:
        return AgentService(
            store, self._policy, tenant=self._tenant, triage=self._triage
        )

    def _here(self) -> AgentService:
        loop = asyncio.get_running_loop()
        service = self._services.get(loop)
        if service is None:
            given = self._store
            store = Store(given.conn.url, shards=given.shards, lease_ms=given.lease_ms)
            service = self._service(store)
            self._services[loop] = service
            # Loops that have ended took their connections along.
            alive = [one for one in self._stores if not one[0].is_closed()]
            self._stores = [*alive, (loop, store)]
        return service
