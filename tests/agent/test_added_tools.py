"""A tool that another middleware adds runs where that middleware is listed first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import tool

from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import Runner, build, results
from tests.agent.fake_gateway import FakeGateway


@tool
def added(x: int) -> str:
    """Act."""
    return f"did {x}"


class Adds(AgentMiddleware[Any, Any, Any]):
    """Adds a tool to each request, and runs its calls."""

    def wrap_model_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        return handler(request.override(tools=[*request.tools, added]))

    def wrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
        return handler(request.override(tool=added))

    async def awrap_model_call(
        self, request: Any, handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        return await handler(request.override(tools=[*request.tools, added]))

    async def awrap_tool_call(
        self, request: Any, handler: Callable[..., Awaitable[Any]]
    ) -> Any:
        return await handler(request.override(tool=added))


@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_tool_of_a_middleware_runs_or_the_refusal_names_the_order(
    runner: Runner, place: str
) -> None:
    gateway = FakeGateway(default=Tier.AUTO)
    call = calling(("added", {"x": 1}, "c1"))
    known = tool("known")(added.func)  # type: ignore[attr-defined]  # a tool made of a function has it
    others: dict[str, Any] = {place: [Adds()]}

    state = await runner.say(build(gateway, [known], call, **others), "go")

    [message] = results(state)
    if place == "before":
        assert message.text == "did 1"
    else:
        assert message.text.startswith("There is no tool 'added'")
        assert (
            "list a middleware that adds tools before ApprovalMiddleware"
            in message.text
        )
