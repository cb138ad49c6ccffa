"""A call that the graph abandons is withdrawn from its reviewers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from typing_extensions import override

from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState
from tests.agent.agent_runner import (
    CONFIG,
    FREE,
    Effects,
    Runner,
    build,
    item_of,
    pay,
)
from tests.agent.fake_gateway import FakeGateway

BOTH = calling(
    ("pay", {"amount": 1, "to": "ada"}, "c1"), ("look_up", {"query": "x"}, "c2")
)
DONE = AIMessage("done")


class Rejects(AgentMiddleware[Any, Any, Any]):
    """Answers each payment itself."""

    @override
    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]
    ) -> Any:
        return self._said(request) or handler(request)

    @override
    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[Any]],
    ) -> Any:
        return self._said(request) or await handler(request)

    def _said(self, request: ToolCallRequest) -> ToolMessage | None:
        call = request.tool_call
        if call["name"] != "pay":
            return None
        return ToolMessage("not today", name="pay", tool_call_id=call["id"])


async def test_what_another_middleware_rejected_waits_for_nobody(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(
        gateway, effects.tools(), BOTH, DONE, saver=memory, before=[Rejects()]
    )

    await runner.say(graph, "pay")

    assert item_of(gateway, "c1").state is ItemState.SUPERSEDED
    assert (effects.paid, effects.looked) == ([], ["x"])


@pytest.mark.parametrize("is_down", [False, True])
async def test_what_a_program_answered_itself_waits_for_nobody_and_runs_never(
    runner: Runner, memory: InMemorySaver, effects: Effects, *, is_down: bool
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, effects.tools(), pay(), DONE, saver=memory)
    await runner.say(graph, "pay")
    mine = ToolMessage("I paid it myself", name="pay", tool_call_id="c1")
    await graph.aupdate_state(CONFIG, {"messages": [mine]}, as_node="tools")
    if is_down:
        gateway.down.add("supersede")

    end = await runner.run(graph, None)

    assert end["messages"][-1].text == "done"
    is_over = item_of(gateway, "c1").state is ItemState.SUPERSEDED
    assert is_over is not is_down
    assert effects.paid == []


async def test_a_call_that_people_decided_is_not_asked_about_again(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, effects.tools(), BOTH, DONE, saver=memory)
    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    gateway.down.add("supersede")

    await runner.resume(graph, gateway)

    assert effects.paid == [(1, "ada")]
    assert item_of(gateway, "c1").state is ItemState.EXECUTED
