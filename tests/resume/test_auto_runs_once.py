"""An auto-approved call runs once, also when a process is paused or killed in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt

from keyturn.agent import grant
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import texts
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.store_threads import under_lease
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.store_secrets import SECRETS

POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, channel: C0APPROVALS, needs: [U0ANA]}
tools:
  ping: {tier: notify}
  count: {tier: auto}
  poll: {tier: auto, idempotent: true}
  delegate: {tier: auto}
  consult: {tier: auto}
  ask_and_count: {tier: auto}
""",
    "policy.yml",
)


class Stage:
    """A gateway, and tools that can be held up."""

    def __init__(self, store: Store, saver: Any, gateway: AgentService) -> None:
        self.store = store
        self.saver = saver
        self.gateway = gateway
        self.keys = store.keys_of_tenant("default")
        self.at = RunRef(agent="shop", thread="t1")
        self.holds = asyncio.Event()
        self.has_begun = asyncio.Event()

    def tools(self) -> list[BaseTool]:
        """Return tools that write to the ledger and then wait for `holds`."""

        async def effect(name: str) -> str:
            sample_tools.note(f"{name} {grant().idempotency_key[-12:]}")
            self.has_begun.set()
            await self.holds.wait()
            return f"{name} done"

        @tool
        async def ping() -> str:
            """Ping."""
            return await effect("ping")

        @tool
        async def count() -> str:
            """Count."""
            return await effect("count")

        @tool
        async def poll() -> str:
            """Poll."""
            return await effect("poll")

        @tool
        async def delegate() -> str:
            """Call another agent that counts."""
            inner = cast("Any", sample_tools.graph(count))
            state = await inner.ainvoke({"messages": [HumanMessage('[["count", {}]]')]})
            return str(state["messages"][-1].text)

        @tool
        async def ask_and_count() -> str:
            """Ask a person, then count."""
            return f"{interrupt('what?')}: {await effect('count')}"

        @tool
        async def consult() -> str:
            """Call another agent that asks a person, then count."""
            inner = cast("Any", sample_tools.graph(ask_and_count))
            question = '[["ask_and_count", {}]]'
            state = await inner.ainvoke({"messages": [HumanMessage(question)]})
            return f"They say: {state['messages'][-1].text}"

        return [ping, count, poll, delegate, ask_and_count, consult]

    def runner(self) -> Runner:
        """Return the agent, as one more process would run it."""
        return Runner(attached(sample_tools.graph(*self.tools()), self.saver))

    async def under(self, work: Any) -> Any:
        """Do something as the holder of the thread's lease."""
        with connected(self.gateway, self.at):
            return await under_lease(self.store, self.keys, self.at, work)

    async def start(self, name: str) -> Runner:
        """One process begins a call, and another one takes its thread over."""
        first = self.runner()
        return await self.taken_over(
            lambda: first.start("t1", f'[["{name}", {{}}]]', key="k")
        )

    async def taken_over(self, work: Any) -> Runner:
        """One process enters a call, and another one takes its thread over."""
        self.late = asyncio.create_task(self.under(work))
        await self.has_begun.wait()
        at = self.at
        lease = self.keys.lease(at.agent, at.thread)
        await self.store.conn.command("DEL", lease)
        return self.runner()

    async def words(self) -> str:
        """Return the agent's last message."""
        return (await self.runner().probe("t1")).final_message


@pytest.fixture
async def stage(store: Store, tmp_path: Path) -> AsyncGenerator[Stage]:
    # A replaced process notices it at its next write: these leases are renewed later
    # than any test ends.
    patient = Store(store.conn.url, secrets=SECRETS, lease_ms=120_000)
    async with _opened(patient, tmp_path / "checkpoints.db") as opened:
        yield opened
    await patient.close()


@asynccontextmanager
async def _opened(store: Store, place: Path) -> AsyncGenerator[Stage]:
    gateway = AgentService(store, lambda: POLICY)
    async with open_checkpoints(str(place)) as saver:
        yield Stage(store, saver, gateway)


async def test_a_paused_processs_call_is_not_repeated(stage: Stage) -> None:
    second = await stage.start("count")

    await stage.under(lambda: second.nudge("t1", key="k"))
    stage.holds.set()
    with pytest.raises(LeaseLost):
        await stage.late

    assert len(sample_tools.ledger()) == 1
    assert await stage.words() == texts.CUT_OFF


async def test_a_repeatable_call_has_the_same_key(stage: Stage) -> None:
    second = await stage.start("poll")
    stage.has_begun.clear()

    again = asyncio.create_task(stage.under(lambda: second.nudge("t1", key="k")))
    await stage.has_begun.wait()
    stage.holds.set()
    await asyncio.gather(again, stage.late, return_exceptions=True)

    first, repeated = sample_tools.ledger()
    assert first == repeated
    assert await stage.words() == "poll done"


@pytest.mark.parametrize("name", ["count", "delegate"])
async def test_a_lost_checkpoint_keeps_the_result(stage: Stage, name: str) -> None:
    """Also where it returned to an agent inside a call."""
    second = await stage.start(name)
    await stage.under(lambda: second.probe("t1"))
    stage.holds.set()
    with pytest.raises(LeaseLost):
        await stage.late

    await stage.under(lambda: second.nudge("t1", key="k"))

    assert len(sample_tools.ledger()) == 1
    assert await stage.words() == "count done"


async def test_a_killed_owners_call_ends_once(store: Store, tmp_path: Path) -> None:
    # The dead owner's claim has to run out: this lease is short.
    async with _opened(store, tmp_path / "checkpoints.db") as stage:
        second = await stage.start("ping")
        stage.late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.late

        await stage.under(lambda: second.nudge("t1", key="k"))

        assert len(sample_tools.ledger()) == 1
        assert await stage.words() == texts.CUT_OFF


async def test_an_inner_agent_goes_on_after_a_pause(stage: Stage) -> None:
    one = stage.runner()
    await stage.under(lambda: one.start("t1", '[["consult", {}]]', key="k"))
    [question] = (await one.probe("t1")).pending
    answer = {question.id: cast("Any", "yes")}
    second = await stage.taken_over(lambda: one.resume("t1", answer, key="k"))
    stage.late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stage.late

    await stage.under(lambda: second.nudge("t1", key="k"))

    assert len(sample_tools.ledger()) == 1
    assert await stage.words() == f"They say: {texts.CUT_OFF}"
