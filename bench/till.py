"""The agent whose tool is waited for: a shop's, with a scripted model and one tool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.pregel import Pregel
from typing_extensions import override

from gateway.agent import ApprovalMiddleware

Graph = Pregel[Any, Any, Any, Any]


class Till:
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


class Scripted(BaseChatModel):
    """A model that refunds whatever order a person names, and then is done."""

    @property
    @override
    def _llm_type(self) -> str:
        return "scripted"

    @override
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        last = messages[-1]
        answer = AIMessage("Done.")
        if isinstance(last, HumanMessage):
            args = {"order": str(last.text), "amount": 49.5}
            call = {"name": "refund", "args": args, "id": "call-1"}
            answer = AIMessage("", tool_calls=[call])  # pyright: ignore[reportArgumentType] - plain dicts are tool calls
        return ChatResult(generations=[ChatGeneration(message=answer)])


def agent(
    till: Till,
    middleware: ApprovalMiddleware | HumanInTheLoopMiddleware[Any, Any, Any],
    wrap: Callable[[BaseTool], BaseTool],
) -> Graph:
    """Return the shop's agent.

    Args:
        till: whose tool it has.
        middleware: what stands before the tool.
        wrap: makes the tool what this middleware wants it to be.
    """
    make = cast("Callable[..., Graph]", create_agent)
    return make(Scripted(), tools=[wrap(till.tool())], middleware=[middleware])
