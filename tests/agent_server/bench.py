"""The bench of the connector: a server, a gateway in this process, and reviewers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from keyturn.connect.agent_server import AgentServer
from keyturn.connect.hand_over import Connector
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.approvals.decisions import Decided, Decision
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.service_settings import ServerSettings
from keyturn.gateway.store.store import Store
from tests.agent_server.dev_server import DevServer
from tests.service.harness import ANA, ServiceHarness

GRAPHS = (
    "stock",
    "per_call",
    "deep",
    "inbox",
    "camel",
    "plain",
    "failing",
    "gated",
    "promised",
)
"""Graphs of the server, from ``graphs.py``; the agent of one is ``a-`` and its name."""

WITHIN_S = 60.0

POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles:
  support: {users: [U0ANA, U0BEN, U0DAN]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000, same_rejected_within: 0}
tools:
  look: {tier: auto}
"""


@dataclass
class Bench:
    """A server with a connector, a gateway, and its reviewers."""

    server: DevServer
    people: ServiceHarness
    gate: LocalGate
    host: AgentServer
    loop: Connector

    def connector(self, host: Any = None) -> Connector:
        """Return another connector of the same server, as after a restart."""
        return Connector(host or self.host, self.gate, every_s=0.05)

    def host_of(self, *graphs: str) -> AgentServer:
        """Return the server as a host of some of its graphs."""
        return AgentServer(
            "crm_", settings(self.server.url, graphs), self.server.session
        )

    async def tick(self, times: int = 1) -> None:
        """Look at the server, and wait until the connector has nothing to do."""
        for _ in range(times):
            await self.loop.tick(looks_at_all=True)
            await self.loop.settled()

    async def until(self, thread: str, *states: ItemState) -> None:
        """Wait until the calls of a thread have these states."""
        async with asyncio.timeout(WITHIN_S):
            while await self.states(thread) != [*states]:  # noqa: ASYNC110 - of a store
                await asyncio.sleep(0.01)

    async def cards(self, thread: str) -> list[Approval]:
        """Return the approvals of a thread, oldest first."""
        keys, found = self.people.keys, list[Approval]()
        approvals = self.people.store.approvals
        for agent in self.host.agents:
            run = RunRef(agent=agent, thread=thread)
            listed = await approvals.of_run(keys, run)
            loaded = await approvals.load_each(one.id for one in listed)
            found += [one.approval for one in loaded]
        return sorted(found, key=lambda one: one.created_at_ms)

    async def items(self, thread: str) -> list[Item]:
        """Return the calls of a thread's approvals."""
        return [item for card in await self.cards(thread) for item in card.items]

    async def states(self, thread: str) -> list[ItemState]:
        """Return the states of a thread's calls."""
        return [item.state for item in await self.items(thread)]

    async def decide(self, thread: str, *decisions: Decision) -> None:
        """Decide the waiting calls of a thread, in their order."""
        waiting = [one for one in await self.items(thread) if one.is_pending]
        for item, decision in zip(waiting, decisions, strict=True):
            outcome = await self.people.decide(item.id, decision, ANA)
            assert isinstance(outcome, Decided), outcome

    async def asked(self, graph: str, given: Any, **run: Any) -> str:
        """Start a thread, and wait until its question reaches people."""
        thread = await self.server.thread(graph, given, **run)
        await self.tick()
        return thread


def settings(url: str, graphs: Iterable[str]) -> ServerSettings:
    """Return the settings of a server with some graphs."""
    listed = {one: {"agent": f"a-{one}"} for one in graphs}
    return ServerSettings.model_validate({"url": url, "graphs": listed})


@asynccontextmanager
async def bench(
    server: DevServer, store: Store, *, url: str = ""
) -> AsyncGenerator[Bench]:
    """Connect a server, or a proxy of it, with a gateway on this store."""
    people = ServiceHarness(store)
    people.put_policy(of=POLICY)
    gate = LocalGate(store, lambda: people.policy)
    given = settings(url or server.url, GRAPHS)
    host = AgentServer("crm_", given, server.session)
    loop = Connector(host, gate, every_s=0.05)
    try:
        yield Bench(server, people, gate, host, loop)
    finally:
        await gate.aclose()
