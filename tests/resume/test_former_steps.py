"""A thread that an older version left before the step that submits goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from tests.resume import sample_tools
from tests.resume.resume_stack import RULES, Stack
from twokey.agent import ApprovalMiddleware, connected
from twokey.agent.scripted_model import ScriptedModel, calling
from twokey.gateway.resume.graphs import Graph, attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.service.agents import AgentService


class Killed(Exception):
    """The process died here."""


class OlderAtItsEnd(ApprovalMiddleware):
    """The middleware as it was when a run ended with a step of its own."""

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        raise Killed


class Older(ApprovalMiddleware):
    """The middleware as it was when it submitted a turn by a step of its own."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        raise Killed


def _runner(kind: type[ApprovalMiddleware], saver: InMemorySaver) -> LangGraphLocal:
    make = cast("Callable[..., Graph]", create_agent)

    def reply(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            return calling(("look_up", {"order": "1"}, "c1"))
        return AIMessage("done")

    graph = make(
        ScriptedModel(reply=reply),
        tools=[sample_tools.look_up],
        middleware=[kind("shop")],
    )
    return LangGraphLocal(attached(graph, saver), agent="shop")


async def test_a_thread_that_stands_before_the_former_step_asks_the_model_again(
    stack: Stack,
) -> None:
    saver = InMemorySaver()
    with connected(AgentService(stack.store, lambda: RULES)):
        with pytest.raises(Killed):
            await _runner(Older, saver).start("t1", "look", key="k")
        runner = _runner(ApprovalMiddleware, saver)
        state = await runner.probe("t1")

        await runner.nudge("t1", key=state.taken)

        after = await runner.probe("t1")
        messages = (await runner.values("t1"))["messages"]
    assert state.is_cut_off
    assert not state.is_finished
    assert after.is_finished
    assert (after.final_message, after.taken) == ("done", "k")
    assert [type(one) for one in messages] == [
        HumanMessage,
        AIMessage,
        ToolMessage,
        AIMessage,
    ]
    assert messages[2].text == "found 1"


async def test_a_thread_that_another_middleware_ended_stays_as_it_is(
    stack: Stack,
) -> None:
    saver = InMemorySaver()
    with connected(AgentService(stack.store, lambda: RULES)):
        runner = _runner(ApprovalMiddleware, saver)
        await runner.start("t1", "look", key="k")
        graph = cast("Any", runner)._graph
        left = calling(("look_up", {"order": "2"}, "c2"))
        await graph.aupdate_state(
            {"configurable": {"thread_id": "t1"}},
            {"messages": [left], "jump_to": "end"},
            as_node="model",
        )

        state = await runner.probe("t1")

    assert state.is_finished


async def test_a_thread_that_stands_before_the_former_last_step_has_ended(
    stack: Stack,
) -> None:
    """That step kept nothing, so the answer before it is the last one."""
    saver = InMemorySaver()
    with connected(AgentService(stack.store, lambda: RULES)):
        with pytest.raises(Killed):
            await _runner(OlderAtItsEnd, saver).start("t1", "look", key="k")

        state = await _runner(ApprovalMiddleware, saver).probe("t1")

    assert state.is_finished
    assert (state.final_message, state.taken) == ("done", "k")
