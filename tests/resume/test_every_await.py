"""Pause, kill or cut off a gateway at any await of a step: nothing doubles or forks.

Two gateways share a store and a Postgres. Each request of one of them to either is a
point. From a chosen point on it sends nothing more, while the other takes its threads
over. Between two points it only computes, so no other process can see a difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, cast

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.types import interrupt

from keyturn.agent import grant
from keyturn.gateway.approvals.decisions import Approve, Reconcile
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import texts
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.protocol.records import Finding, ItemState, RunRef
from keyturn.gateway.resume import fence_tables
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.store_threads import under_lease
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.connection.connection import Connection
from keyturn.gateway.store.store import Store
from tests.chaos.oracle import FORKS
from tests.conftest import eventually
from tests.levels import sample
from tests.resume import sample_tools
from tests.resume.postgres_server import fresh_database
from tests.resume.resume_stack import POLICY, Stack
from tests.store_secrets import SECRETS

LEASE_MS = 400
LAST = 170
"""There is no later point in these steps, or hardly any."""
RULES = load_policy(POLICY + "  ping: {tier: notify}\n", "policy.yml")
Kind = Literal["stop", "kill", "cut"]


@tool
def ping() -> str:
    """Ping; the policy notifies a channel."""
    sample_tools.note("ping")
    return "pinged"


_is_first: ContextVar[bool] = ContextVar("is_first", default=False)


class Halt:
    """Stop one gateway at its nth point."""

    def __init__(self, kind: Kind, at: int) -> None:
        self.kind = kind
        self.left = at
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def point(self, *, is_store: bool) -> None:
        """Pass a point, or wait there."""
        if not _is_first.get():
            return
        self.left -= 1
        if self.left > 0 or (self.kind == "cut" and not is_store):
            return
        self.reached.set()
        await self.goes_on.wait()

    def around(self, real: Any, *, is_store: bool) -> Callable[..., Awaitable[Any]]:
        """Put a point before and behind a function."""

        async def pointed(*given: Any, **named: Any) -> Any:
            await self.point(is_store=is_store)
            found = await real(*given, **named)
            await self.point(is_store=is_store)
            return found

        return pointed


@asynccontextmanager
async def gateway(url: str, database: str) -> AsyncGenerator[Stack]:
    """Open a gateway with separate connections, without a worker."""
    store = Store(url, secrets=SECRETS, lease_ms=LEASE_MS)
    async with open_checkpoints(database) as saver:
        runner = Runner(attached(sample_tools.graph(ping), saver), agent="shop")
        stack = Stack(store, runner, saver)
        stack.policy = RULES
        yield stack
    await store.close()


async def decide_all(stack: Stack, kind: Kind) -> None:
    """Approve pending calls, and reconcile calls in doubt, until the thread has ended.

    For a killed process it is known whether a call ran. A paused one may still run it,
    so nobody may choose "run again"; the same applies to a call without an approval.
    """
    for item in await stack.items():
        if item.is_pending:
            await stack.decide(item, Approve())
        elif item.state is ItemState.IN_DOUBT:
            has_run = any(line.startswith(item.tool) for line in sample_tools.ledger())
            again = kind == "kill" and not (has_run or item.is_auto_approved)
            finding = Finding.RERUN if again else Finding.EXECUTED
            await stack.decide(item, Reconcile(finding=finding))


@pytest.mark.slow
@pytest.mark.parametrize("at", sample(range(1, LAST), 3))
@pytest.mark.parametrize("kind", ["stop", "kill", "cut"])
async def test_whatever_halts_a_gateway_nothing_doubles_or_forks(
    store: Store,
    postgres: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    at: int,
) -> None:
    halt, database = Halt(kind, at), fresh_database(postgres)
    # A process that is paused inside its transaction blocks the other one for this
    # long.
    monkeypatch.setattr(fence_tables, "_PAUSE_MS", 500)
    monkeypatch.setattr("keyturn.gateway.resume.worker.GRACE_S", 0.1)
    for name in ("command", "transaction", "evalsha"):
        real = getattr(Connection, name)
        monkeypatch.setattr(Connection, name, halt.around(real, is_store=True))
    for name in ("aget_tuple", "aput", "aput_writes"):
        real = getattr(AsyncPostgresSaver, name)
        monkeypatch.setattr(AsyncPostgresSaver, name, halt.around(real, is_store=False))

    async with (
        gateway(store.conn.url, database) as one,
        gateway(store.conn.url, database) as two,
    ):

        async def work() -> None:
            _is_first.set(True)
            async with one.working():
                await asyncio.Event().wait()

        async def has_ended() -> bool:
            await decide_all(two, kind)
            return bool(await two.events(EventName.RUN_FINISHED))

        first = asyncio.create_task(work())
        await two.ask(("ping", {}), ("refund", {"order": "1", "amount": 5.0}))
        waits = [halt.reached.wait(), eventually(has_ended)]
        begun = [asyncio.ensure_future(cast("Any", one)) for one in waits]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        for each in begun:
            each.cancel()
        async with two.working():
            await eventually(has_ended)
            if kind != "kill":
                halt.goes_on.set()
            await two.idle()
        first.cancel()
        halt.goes_on.set()
        await asyncio.gather(first, *begun, return_exceptions=True)
        told = await two.events(EventName.RUN_FINISHED)

    assert len(told) == 1
    for name in ("ping", "refund"):
        assert sum(line.startswith(name) for line in sample_tools.ledger()) <= 1
    async with await psycopg.AsyncConnection.connect(database) as connection:
        assert await (await connection.execute(FORKS)).fetchall() == []


# An auto-approved call runs once, also when a process is paused or killed in it.


AUTO = load_policy(
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
    gateway = AgentService(store, lambda: AUTO)
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
