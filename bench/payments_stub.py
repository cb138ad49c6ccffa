"""Agent under test: a scripted model, and a tool that records its start time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import ScriptedModel, calling

Graph = Pregel[Any, Any, Any, Any]


class PaymentsStub:
    """Payments backend: its one tool records its start time."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Future[float]] = {}

    def expect(self, order: str) -> asyncio.Future[float]:
        """Return a future of the tool's start time for this order."""
        begun = asyncio.get_running_loop().create_future()
        self._begun[order] = begun
        return begun

    async def refund(self, order: str, amount: float) -> str:
        """Give money back."""
        now = time.perf_counter()
        self._begun[order].set_result(now)
        return f"refunded {amount:g}"

    def tool(self) -> BaseTool:
        """Return the tool for an agent."""
        return StructuredTool.from_function(coroutine=self.refund, name="refund")


Reply = Callable[[list[BaseMessage]], AIMessage]


def refund_once(messages: list[BaseMessage]) -> AIMessage:
    """Refund the order in the user's message, then end the run."""
    last = messages[-1]
    if not isinstance(last, HumanMessage):
        return AIMessage("Done.")
    return calling(("refund", {"order": str(last.text), "amount": 49.5}, "call-1"))


def agent(
    stub: PaymentsStub,
    middleware: ApprovalMiddleware | HumanInTheLoopMiddleware[Any, Any, Any],
    wrap: Callable[[BaseTool], BaseTool],
    reply: Reply = refund_once,
) -> Graph:
    """Return the shop's agent.

    Args:
        stub: the backend of its tool.
        middleware: the gate under test.
        wrap: prepares the tool for this middleware, such as `guarded`.
        reply: its model.
    """
    make = cast("Callable[..., Graph]", create_agent)
    return make(
        ScriptedModel(reply=reply), tools=[wrap(stub.tool())], middleware=[middleware]
    )
