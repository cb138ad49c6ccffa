"""The connector of Agent Servers keeps what every connector promises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keyturn.connect.agent_server import AgentServer
from keyturn.connect.hand_over import TRIES, Connector
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service_settings import ServerSettings
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import AGENT, HANDED_OVER, Behaviour, Call, Desk, name_of
from tests.agent_server.bench import Bench
from tests.agent_server.dev_server import DevServer
from tests.agent_server.test_decisions import LOOK, REFUND, paid
from tests.api.api_stack import serving

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


# An agent with Keyturn's own middleware runs on the server, and is resumed there.


# It claims its calls itself, so they are executed once, and not handed over.


def gateway_of(on: Bench) -> Path:
    """Return the file that names the gateway for the agent on the server."""
    return on.server.effects.with_name("gateway.json")


def refuse_the_agent(on: Bench) -> str:
    """Give the agent a key that the gateway refuses; return what it had."""
    given = gateway_of(on).read_text(encoding="utf-8")
    changed = json.dumps({**json.loads(given), "api_key": "tk_of_nobody"})
    gateway_of(on).write_text(changed, encoding="utf-8")
    return given


@pytest.fixture
async def gated(on: Bench) -> AsyncGenerator[Bench]:
    """Give the agent on the server a gateway over HTTP."""
    async with serving(on.people) as api:
        given = {"gateway": api.url, "api_key": api.key(agents=["a-gated"])}
        gateway_of(on).write_text(json.dumps(given), encoding="utf-8")
        yield on


async def test_an_approved_call_is_executed_once(gated: Bench) -> None:
    thread = await gated.asked("gated", [[REFUND, LOOK]])
    await gated.decide(thread, Approve())

    await gated.tick(3)

    assert gated.server.done(thread, "refund") == [paid(7.0)]
    [item] = [one for one in await gated.items(thread) if one.tool == "refund"]
    assert item.state is ItemState.EXECUTED
    assert item.handed_to == ""
    assert len(await gated.server.runs(thread)) == 2


async def test_an_edit_and_a_rejection_reach_it(gated: Bench) -> None:
    other = ["refund", {"order": "B2", "amount": 8.0}]
    thread = await gated.asked("gated", [[REFUND, other]])
    await gated.decide(thread, Edit(args={"order": "A1", "amount": 5.0}), Reject())

    await gated.tick(4)

    assert gated.server.done(thread) == [paid(5.0)]
    assert await gated.states(thread) == [ItemState.EXECUTED, ItemState.REJECTED]
    assert await gated.server.questions(thread) == []


async def test_an_answer_is_sent_again_after_its_run_failed(gated: Bench) -> None:
    thread = await gated.asked("gated", [[REFUND]])
    await gated.decide(thread, Approve())
    given = refuse_the_agent(gated)
    await gated.tick()
    assert await gated.states(thread) == [ItemState.AUTHORIZED]
    gateway_of(gated).write_text(given, encoding="utf-8")

    await gated.tick(3)

    assert gated.server.done(thread) == [paid(7.0)]
    assert await gated.states(thread) == [ItemState.EXECUTED]


async def test_an_agent_that_always_fails_is_not_run_for_ever(gated: Bench) -> None:
    thread = await gated.asked("gated", [[REFUND]])
    await gated.decide(thread, Approve())
    refuse_the_agent(gated)

    await gated.tick(TRIES + 3)

    assert len(await gated.server.runs(thread)) == 1 + TRIES
