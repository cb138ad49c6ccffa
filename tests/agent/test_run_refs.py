"""An agent belongs to the enclosing run, or else to its own run."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from keyturn.agent import (
    ApprovalMiddleware,
    connected,
)
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState, RunRef, Tier
from tests.agent.agent_runner import (
    CONFIG,
    Effects,
    Runner,
    agent_with,
    build,
    item_of,
    pay,
)
from tests.agent.fake_gateway import FakeGateway

TIERS = {"delegate": Tier.AUTO}
DELEGATE = calling(("delegate", {"job": "pay ada"}, "d1"))
RUN = RunRef(agent="support", thread="thread-1")
OWN: RunnableConfig = {"configurable": {"thread_id": "payers"}}


def delegating(inner: Any, config: RunnableConfig | None, runner: Runner) -> BaseTool:
    """Return a tool in which an agent works, perhaps in a separate thread."""

    async def adelegate(job: str) -> str:
        """Call another agent."""
        await inner.ainvoke({"messages": [("user", job)]}, config)
        return "done"

    def delegate(job: str) -> str:
        """Call another agent."""
        inner.invoke({"messages": [("user", job)]}, config)
        return "done"

    return tool("delegate")(adelegate) if runner.is_async else tool(delegate)


def payer(gateway: FakeGateway | None, effects: Effects) -> Any:
    """Return an agent that wants to pay."""
    middleware = ApprovalMiddleware("payer", gateway=gateway)
    return agent_with(middleware, effects, pay(1, "ada"))


def run_of(gateway: FakeGateway, call_id: str) -> RunRef:
    """Return the run that a held call belongs to."""
    return gateway.runs[item_of(gateway, call_id).id]


@pytest.mark.parametrize("config", [None, OWN])
async def test_an_agent_in_a_tool_is_at_home_outside_but_for_a_thread_of_its_own(
    runner: Runner,
    effects: Effects,
    memory: InMemorySaver,
    config: RunnableConfig | None,
) -> None:
    gateway = FakeGateway(TIERS)
    inner = payer(gateway, effects)
    graph = build(gateway, [delegating(inner, config, runner)], DELEGATE, saver=memory)

    await runner.say(graph, "pay ada")

    own = RunRef(agent="payer", thread="payers")
    assert run_of(gateway, "c1") == (own if config else RUN)


async def test_the_outermost_agent_is_at_home_in_its_own_thread(
    runner: Runner, effects: Effects, memory: InMemorySaver
) -> None:
    gateway = FakeGateway()
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    stale = RunRef(agent="another", thread="left over")

    with connected(gateway, stale):
        await runner.say(graph, "pay ada")

    assert run_of(gateway, "c1") == RUN
    assert next(iter(gateway.turns.values()))[0].ref.nested_in is None


@pytest.mark.parametrize("given", [RunRef(agent="flow", thread="thread-1"), None])
async def test_an_agent_that_is_a_node_is_at_home_where_its_graph_is_run(
    runner: Runner, effects: Effects, memory: InMemorySaver, given: RunRef | None
) -> None:
    gateway = FakeGateway()
    builder: Any = StateGraph(MessagesState)
    builder.add_node("payer", payer(None, effects))
    builder.add_edge(START, "payer")
    builder.add_edge("payer", END)
    graph = builder.compile(checkpointer=memory)

    with connected(gateway, given):
        await runner.say(graph, "pay ada")

    assert run_of(gateway, "c1") == (given or RunRef(agent="payer", thread="thread-1"))


async def test_an_agent_in_a_tool_that_a_person_approved_is_at_home_outside(
    runner: Runner, effects: Effects, memory: InMemorySaver
) -> None:
    gateway = FakeGateway()
    inner = payer(gateway, effects)
    tools = [delegating(inner, None, runner)]
    graph = build(gateway, tools, DELEGATE, saver=memory)
    await runner.say(graph, "pay ada")
    gateway.approve(item_of(gateway, "d1").id)

    await runner.resume(graph, gateway)

    assert run_of(gateway, "c1") == RUN


async def test_new_words_end_what_waits_inside_a_tool_at_once(
    runner: Runner, effects: Effects, memory: InMemorySaver
) -> None:
    gateway = FakeGateway(TIERS)
    inner = payer(gateway, effects)
    tools = [delegating(inner, None, runner)]
    graph = build(gateway, tools, DELEGATE, AIMessage("as you like"), saver=memory)
    await runner.say(graph, "pay ada")
    waiting = item_of(gateway, "c1")

    await runner.say(graph, "never mind", CONFIG)

    assert waiting.is_pending
    assert item_of(gateway, "c1").state is ItemState.SUPERSEDED
    assert effects.paid == []
