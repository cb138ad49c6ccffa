"""The agent whose tool is waited for: a shop's, with a scripted model and one tool."""

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

from twokey.agent import ApprovalMiddleware
from twokey.agent.scripted_model import ScriptedModel, calling

Graph = Pregel[Any, Any, Any, Any]


class PaymentsStub:
    """The shop's till: its one tool notes when its first line ran."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Future[float]] = {}

    def expect(self, order: str) -> asyncio.Future[float]:
        """Return what will hold the time at which the tool began for this order."""
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


def _reply(messages: list[BaseMessage]) -> AIMessage:
    """Refund the order that a person names, and then be done."""
    last = messages[-1]
    if not isinstance(last, HumanMessage):
        return AIMessage("Done.")
    return calling(("refund", {"order": str(last.text), "amount": 49.5}, "call-1"))


def agent(
    stub: PaymentsStub,
    middleware: ApprovalMiddleware | HumanInTheLoopMiddleware[Any, Any, Any],
    wrap: Callable[[BaseTool], BaseTool],
) -> Graph:
    """Return the shop's agent.

    Args:
        stub: whose tool it has.
        middleware: what stands before the tool.
        wrap: makes the tool what this middleware wants it to be.
    """
    make = cast("Callable[..., Graph]", create_agent)
    return make(
        ScriptedModel(reply=_reply), tools=[wrap(stub.tool())], middleware=[middleware]
    )
