"""Agents that nobody edited ask people through the gateway, and get their decisions."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent.scripted_model import ScriptedModel
from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.resume import recovery
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from keyturn.testing import adapters
from keyturn.testing.adapters import (
    AGENT,
    HANDED_OVER,
    Behaviour,
    Desk,
    a_call_answered_elsewhere_is_not_taken,
    name_of,
)
from tests.conftest import eventually
from tests.dialects.sample_agents import FAILS, KINDS, Agent, Call, Graph, called
from tests.forked import Forked
from tests.levels import sample
from tests.resume import sample_tools, stock_process
from tests.resume.resume_stack import ANA, DAN, GIVING_UP, ORIGIN, POLICY, Stack
from tests.resume.stock_process import AGENTS, POINTS
from tests.resume.test_restored import lose_the_jobs, problems

RULES = load_policy(
    POLICY.replace("tools:", "tools:\n  pay: {tier: approve}\n  mail: {tier: auto}"),
    "policy.yml",
)
PAY: Call = {"name": "pay", "args": {"order": "7", "amount": 7.0}}
FULL = {"order": "7", "amount": 7.0}


@asynccontextmanager
async def opened(store: Store, folder: Path, agent: Agent) -> AsyncGenerator[Stack]:
    """Open a gateway that runs a stock agent."""
    async with open_checkpoints(str(folder / "checkpoints.db")) as saver:
        runner = Runner(attached(agent.graph, saver), agent="shop", hands_over=True)
        stack = Stack(store, runner, saver)
        stack.policy = RULES
        yield stack


@pytest.fixture(params=[*AGENTS])
def agent(request: pytest.FixtureRequest) -> Agent:
    """Give each stock agent."""
    return AGENTS[request.param]()


@pytest.fixture
async def stack(store: Store, tmp_path: Path, agent: Agent) -> AsyncGenerator[Stack]:
    """Give a gateway that runs the agent."""
    async with opened(store, tmp_path, agent) as stack:
        yield stack


def calls_of(agent: Agent, *calls: Call) -> str:
    """Return the message with which an agent proposes calls; subagents do them."""
    if not agent.subagents:
        return json.dumps(calls)
    tasks = [
        {
            "name": "task",
            "args": {"description": json.dumps([one]), "subagent_type": kind},
        }
        for one, kind in zip(calls, agent.subagents, strict=False)
    ]
    return json.dumps(tasks)


async def ended(stack: Stack) -> None:
    """Wait until the thread has ended, and no call waits for its end."""

    async def is_so() -> bool:
        state = await stack.runner.probe("t1")
        return state.is_finished and ItemState.HANDING_OVER not in await stack.states()

    await eventually(is_so)


async def waits(stack: Stack, count: int = 1) -> list[Item]:
    """Wait until this many calls are put to people; return them."""

    async def is_so() -> bool:
        return len(await pending(stack)) == count

    await eventually(is_so)
    return await pending(stack)


async def pending(stack: Stack) -> list[Item]:
    """Return the calls that wait."""
    return [item for item in await stack.items() if item.is_pending]


async def test_an_auto_call_asks_nobody(stack: Stack, agent: Agent) -> None:
    async with stack.working():
        await stack.say(calls_of(agent, {**PAY, "name": "mail"}))
        await ended(stack)

    assert agent.effects == [("mail", FULL)]
    assert await stack.items() == []


async def test_two_calls_run_once_in_any_order(stack: Stack, agent: Agent) -> None:
    async with stack.working():
        second: Call = {"name": "pay", "args": {"order": "9", "amount": 1.0}}
        await stack.say(calls_of(agent, PAY, second))
        first, last = await waits(stack, 2)
        await stack.decide(last)
        await stack.decide(first)
        await ended(stack)

    assert sorted(args["order"] for _, args in agent.effects) == ["7", "9"]
    assert await stack.states() == [ItemState.HANDED_OVER] * 2


async def test_a_new_message_ends_open_cards(stack: Stack, agent: Agent) -> None:
    async with stack.working():
        await stack.say(calls_of(agent, PAY))
        [item] = await waits(stack)
        await stack.say(calls_of(agent))

        async def is_dropped() -> bool:
            return await stack.states() == [ItemState.SUPERSEDED]

        await eventually(is_dropped)
        await stack.decide(item)

    assert agent.effects == []


async def test_a_decision_is_handed_over_after_a_restart(
    store: Store, tmp_path: Path, agent: Agent, stack: Stack
) -> None:
    async with stack.working():
        await stack.say(calls_of(agent, PAY))
        [item] = await waits(stack)
    assert (item.tool, item.args, item.handed_to) == ("pay", FULL, "agent shop")
    [approval] = await stack.approvals()
    assert [one.user for one in approval.principals] == ["U0DAN"]
    await stack.decide(item)
    async with opened(store, tmp_path, agent) as later, later.working():
        await ended(later)

    assert agent.effects == [("pay", FULL)]
    assert await stack.states() == [ItemState.HANDED_OVER]


@pytest.mark.slow
async def test_a_decision_without_a_job_arrives(stack: Stack, agent: Agent) -> None:
    async with stack.working():
        await stack.say(calls_of(agent, PAY))
        [item] = await waits(stack)
        await stack.idle()
    await stack.decide(item)
    await lose_the_jobs(stack)

    assert await problems(stack) == [recovery.DECIDED]
    async with stack.working():
        await ended(stack)

    assert agent.effects == [("pay", FULL)]
    assert await problems(stack) == []


@pytest.mark.slow
async def test_a_lost_record_refuses_the_call(stack: Stack, agent: Agent) -> None:
    async with stack.working():
        await stack.say(calls_of(agent, PAY))
        await waits(stack)
        await stack.idle()
    await stack.store.conn.command("FLUSHALL")

    assert await problems(stack) == [recovery.UNASKED]
    async with stack.working():
        await ended(stack)

    assert agent.effects == []


async def tried_again(stack: Stack) -> None:
    """Press Try again, and wait until the run is parked again."""
    [run] = await stack.reviews.runs.all()
    assert await stack.reviews.runs.retry(run, "cli/ana")

    async def is_parked() -> bool:
        return len(await stack.events(EventName.RUN_PARKED)) == 2

    await eventually(is_parked)


async def test_an_agent_that_fails_gets_it_once(stack: Stack, agent: Agent) -> None:
    async with stack.working(retries=GIVING_UP):
        await stack.say(calls_of(agent, {"name": "pay", "args": {"order": FAILS}}))
        [item] = await waits(stack)
        await stack.decide(item)

        async def is_parked() -> bool:
            return bool(await stack.events(EventName.RUN_PARKED))

        await eventually(is_parked)
        [item] = await stack.items()
        is_open = bool((await stack.runner.probe("t1")).pending)
        # Its question is gone if another step of the agent runs the call.
        handed, missed = ItemState.HANDED_OVER, ItemState.NOT_TAKEN
        assert item.state is (missed if is_open else handed)
        await stack.idle()
        assert sample_tools.ledger() == ["tried"]
        [parked] = await stack.events(EventName.RUN_PARKED)
        assert "Try again could run it a second time" in parked.reason
        if not is_open:
            # It warns again, before anything else repeats the call.
            await tried_again(stack)
            assert sample_tools.ledger() == ["tried"] * 2
            [_, parked] = await stack.events(EventName.RUN_PARKED)
            assert "Try again could run it a second time" in parked.reason
            return
        assert item.handed.problem == "failed"
        assert "the bank is closed" in item.handed.detail

        approval_id = item.id.rpartition(".")[0]
        await stack.reviews.change_own(approval_id, waiting_changes.ask_again, 0, ANA)

        async def is_answered() -> bool:
            [now] = await stack.items()
            return bool(now.handed.again_detail)

        await eventually(is_answered)
        [now] = await stack.items()
        assert now.handed.again_detail.startswith("This agent cannot ask again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "point"), sample(itertools.product(AGENTS, POINTS), 7), indirect=["agent"]
)
async def test_a_process_killed_at_any_point_of_a_hand_over_runs_the_call_once(
    store: Store,
    tmp_path: Path,
    agent: Agent,
    point: str,
    request: pytest.FixtureRequest,
) -> None:
    name = request.node.callspec.params["agent"]
    async with opened(store, tmp_path, agent) as stack:
        await stack.say(calls_of(agent, PAY))
        process = Forked(
            stock_process.__name__, store.conn.url, str(tmp_path), name, point,
            cwd=tmp_path,
        )  # fmt: skip
        if point != "asked":
            [item] = await waits(stack)
            await stack.decide(item)
        await asyncio.to_thread(process.wait, 60)
        async with stack.working():
            if point == "asked":
                [item] = await waits(stack)
                await stack.decide(item)
            await ended(stack)

    assert [json.loads(line) for line in sample_tools.ledger()] == [["pay", FULL]]
    assert await stack.states() == [ItemState.HANDED_OVER]


# Agents that nobody edited keep what every connector promises.


# Only the gateway answers the threads of its agents.
PROMISES = [
    one for one in HANDED_OVER if one is not a_call_answered_elsewhere_is_not_taken
]


@dataclass
class Turn:
    """One turn of a stock agent, and the gateway that runs it."""

    stack: Stack
    heard: asyncio.Future[list[str]]
    process: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def work(self) -> None:
        await self.process.enter_async_context(self.stack.working())

    async def outputs(self) -> list[str]:
        return await self.heard

    async def replay(self) -> list[str]:
        await self.work()
        return await self.outputs()

    async def stop(self) -> None:
        await self.process.aclose()


@dataclass
class Agents:
    """LangChain's stock agent with the tools of the desk."""

    desk: Desk
    turns: list[Turn] = field(default_factory=list[Turn])

    async def propose(self, calls: Sequence[adapters.Call]) -> Turn:
        heard = asyncio.get_running_loop().create_future()

        def reply(messages: Sequence[BaseMessage]) -> AIMessage:
            told = [one for one in messages if isinstance(one, ToolMessage)]
            if told:
                told.sort(key=lambda one: one.tool_call_id)
                heard.set_result([str(one.text) for one in told])
            return called(messages)

        bank = self.desk.bank
        tools = [
            StructuredTool.from_function(coroutine=it) for it in (bank.pay, bank.wipe)
        ]
        asks: Any = {it.name: {"allowed_decisions": [*KINDS]} for it in tools}
        make = cast("Callable[..., Graph]", create_agent)
        saver = InMemorySaver()
        graph = make(
            ScriptedModel(reply=reply),
            tools=tools,
            middleware=[HumanInTheLoopMiddleware(asks)],
            checkpointer=saver,
        )
        runner = Runner(attached(graph, saver), agent=AGENT, hands_over=True)
        stack = Stack(self.desk.store, runner, saver)
        stack.runners = {AGENT: runner}
        stack.policy = load_policy(adapters.POLICY, "policy.yml")
        turn = Turn(stack, heard)
        self.turns.append(turn)
        await turn.work()
        said = json.dumps([{"name": one.tool, "args": one.args} for one in calls])
        await stack.reviews.ask_agent(AGENT, "t1", said, requester=DAN, origin=ORIGIN)
        return turn


@pytest.mark.parametrize("behaviour", PROMISES, ids=name_of)
async def test_stock_agents_keep_promises(behaviour: Behaviour, store: Store) -> None:
    async with Desk.on(store) as desk, asyncio.timeout(60):
        agents = Agents(desk)
        try:
            await behaviour(desk, agents)
        finally:
            for turn in agents.turns:
                await turn.stop()
