"""The connector of Agent Servers keeps what every connector promises."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from keyturn.connect.agent_server import AgentServer
from keyturn.connect.hand_over import Connector
from keyturn.gateway.service_settings import ServerSettings
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    HANDED_OVER,
    Behaviour,
    Call,
    Desk,
    name_of,
)
from tests.agent_server.dev_server import DevServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("agent_server")]


@dataclass
class Turn:
    """One turn of the agent on the server, and the connector of this process."""

    desk: Desk
    server: DevServer
    thread: str
    loop: Connector = field(init=False)
    working: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        graphs = {"promised": {"agent": AGENT}}
        given = ServerSettings.model_validate(
            {"url": self.server.url, "graphs": graphs}
        )
        host = AgentServer("crm", given, self.server.session)
        self.loop = Connector(host, self.desk.gate, every_s=0.05)
        self.working = asyncio.create_task(self.loop.run())

    async def outputs(self) -> list[str]:
        while await self.server.questions(self.thread):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)
        await self.server.ended(self.thread)
        done = self.server.done(self.thread, "pay", "wipe")
        self.desk.bank.paid[:] = [
            {it: one[it] for it in ("amount", "to")} for one in done
        ]
        found = (await self.server.values(self.thread))["messages"]
        messages = sorted(found, key=lambda one: str(one.get("tool_call_id")))
        return [str(one["content"]) for one in messages if one["type"] == "tool"]

    async def replay(self) -> list[str]:
        """Go on with another connector."""
        self.__post_init__()
        return await self.outputs()

    async def stop(self) -> None:
        self.working.cancel()
        await asyncio.wait([self.working])

    async def answer_elsewhere(self) -> None:
        [one] = await self.server.questions(self.thread)
        rejected = {"decisions": [{"type": "reject"}]}
        command = {"resume": {one["id"]: rejected}}
        await self.server.run(self.thread, "promised", command=command)


@dataclass
class Agents:
    """The agent of the behaviours, on the server."""

    desk: Desk
    server: DevServer
    turns: list[Turn] = field(default_factory=list[Turn])

    async def propose(self, calls: Sequence[Call]) -> Turn:
        """Make the model propose these calls in one response."""
        script = [[[one.tool, one.args] for one in calls]]
        turn = Turn(
            self.desk, self.server, await self.server.thread("promised", script)
        )
        self.turns.append(turn)
        return turn


@pytest.mark.parametrize("behaviour", HANDED_OVER, ids=name_of)
async def test_it_keeps_what_connectors_promise(
    behaviour: Behaviour, store: Store, server: DevServer
) -> None:
    async with Desk.on(store) as desk, asyncio.timeout(60):
        agents = Agents(desk, server)
        try:
            await behaviour(desk, agents)
        finally:
            for turn in agents.turns:
                # It may still record the end of the last hand-over.
                await turn.loop.settled()
                await turn.stop()
