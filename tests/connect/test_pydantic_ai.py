"""A Pydantic AI agent behind Keyturn, in process and durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from keyturn.connect.pydantic_ai import KeyturnApproval
from keyturn.gateway.store.store import Store
from keyturn.testing.adapters import (
    AGENT,
    EXECUTED,
    Behaviour,
    Call,
    Desk,
    Run,
    name_of,
)

CONVERSATION = "order-61003"


def scripted(calls: Sequence[Call]) -> FunctionModel:
    """Make these calls in the first response, then end."""

    def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if returns_in(messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(
            parts=[
                ToolCallPart(call.tool, call.args, tool_call_id=f"c{number}")
                for number, call in enumerate(calls)
            ]
        )

    return FunctionModel(model)


def returns_in(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    return [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def told_in(result: AgentRunResult[Any]) -> list[str]:
    """Return what the model reads of each call, in the order of the calls."""
    found = sorted(returns_in(result.all_messages()), key=lambda it: it.tool_call_id)
    return [part.model_response_str() for part in found]


@dataclass
class InProcess:
    """The agent waits for people where it is; a replay begins at the response."""

    desk: Desk

    async def propose(self, calls: Sequence[Call]) -> Run:
        agent = self.agent(calls)
        return InProcessRun(agent)

    def agent(self, calls: Sequence[Call]) -> Agent[None, Any]:
        bank = self.desk.bank
        return Agent(
            scripted(calls),
            tools=[bank.pay, bank.wipe],
            capabilities=[KeyturnApproval(AGENT, gateway=self.desk.gate)],
        )


class InProcessRun:
    def __init__(self, agent: Agent[None, Any]) -> None:
        self._agent = agent
        self._saved: asyncio.Future[bytes] = asyncio.Future()
        self._task = asyncio.create_task(self._first())

    async def _first(self) -> list[str]:
        async with self._agent.iter("pay", conversation_id=CONVERSATION) as run:
            async for node in run:
                if Agent.is_call_tools_node(node) and not self._saved.done():
                    saved = ModelMessagesTypeAdapter.dump_json(run.all_messages())
                    self._saved.set_result(saved)
            assert run.result is not None
            return told_in(run.result)

    async def told(self) -> list[str]:
        return await self._task

    async def replay(self) -> list[str]:
        history = ModelMessagesTypeAdapter.validate_json(await self._saved)
        return told_in(await self._agent.run(message_history=history))

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.mark.parametrize("behaviour", EXECUTED, ids=name_of)
async def test_it_keeps_what_connectors_promise_in_process(
    behaviour: Behaviour, store: Store
) -> None:
    async with Desk.on(store) as desk:
        await behaviour(desk, InProcess(desk))
