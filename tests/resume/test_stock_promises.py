"""Agents that nobody edited keep what every connector promises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent.scripted_model import ScriptedModel
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    HANDED_OVER,
    POLICY,
    Behaviour,
    Call,
    Desk,
    a_call_answered_elsewhere_is_not_taken,
    name_of,
)
from tests.dialects.sample_agents import KINDS, Graph, called
from tests.resume.resume_stack import DAN, ORIGIN, Stack

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

    async def propose(self, calls: Sequence[Call]) -> Turn:
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
        stack.runners, stack.policy = {AGENT: runner}, load_policy(POLICY, "policy.yml")
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
