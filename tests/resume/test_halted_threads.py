"""Breakpoints work at every node, and a recursion limit is reached once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import ItemState
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    asked,
    decide,
    idle,
    items_of,
    recovered_elsewhere,
    refund,
    saying,
)

Graph = Pregel[Any, Any, Any, Any]
HIDDEN: dict[str, Graph] = {}
LIMIT = 12


def danger(_state: object) -> dict[str, Any]:
    """Do what a person wanted to look at first."""
    sample_tools.note("danger")
    return {"messages": [AIMessage("danger done")]}


async def hidden(state: MessagesState) -> dict[str, Any]:
    """Run a graph that is not visible from outside."""
    graph = cast("Any", HIDDEN["graph"])
    return cast("dict[str, Any]", await graph.ainvoke(state))


def outer(node: Any) -> Graph:
    """Make a graph of one node."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("inside", node)
    builder.add_edge(START, "inside")
    return cast("Graph", builder.compile())


def stopping(**options: Any) -> Graph:
    """Make a graph that stops at its node."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("danger", danger)
    builder.add_edge(START, "danger")
    return cast("Graph", builder.compile(**options))


def agent(*middleware: Any, model: Any = None, **options: Any) -> Graph:
    """Make a gated agent."""
    make = cast("Callable[..., Graph]", create_agent)
    return make(
        model or sample_tools.obedient(),
        tools=[guarded(sample_tools.refund), sample_tools.look_up],
        middleware=[*middleware, ApprovalMiddleware("shop")],
        **options,
    )


@pytest.mark.parametrize(
    "node",
    [
        stopping(interrupt_before=["danger"]),
        stopping(interrupt_after=["danger"]),
        stopping(interrupt_before="*", checkpointer=True),
        outer(stopping(interrupt_before=["danger"])),
        agent(interrupt_before=["tools"]),
    ],
)
async def test_a_visible_breakpoint_is_refused(tk: Keyturn, node: Graph) -> None:
    with pytest.raises(GraphError, match=r"graph at .inside.*interrupt_before"):
        await tk.run(outer(node), refund(), **AT)

    assert sample_tools.ledger() == []
    assert await items_of(tk) == []


async def test_a_hidden_breakpoint_still_holds(tk: Keyturn) -> None:
    HIDDEN["graph"] = stopping(interrupt_before=["danger"])
    graph = outer(hidden)

    for given in (saying("go"), saying("go"), None):
        with pytest.raises(GraphError, match="stands at a breakpoint"):
            await tk.run(graph, given, **AT)
    await recovered_elsewhere(tk, graph)
    await idle(tk)

    assert sample_tools.ledger() == []


def beside(node: Any, branch: Any) -> Graph:
    """Make a graph of two nodes that run at the same time."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("asking", node)
    builder.add_node("inside", branch)
    builder.add_edge(START, "asking")
    builder.add_edge(START, "inside")
    return cast("Graph", builder.compile())


async def test_an_answer_runs_its_branch_only(tk: Keyturn) -> None:
    HIDDEN["graph"] = stopping(interrupt_before=["danger"])
    graph = beside(agent(), hidden)

    with pytest.raises(GraphError, match="stands at a breakpoint"):
        await tk.run(graph, refund(), **AT)
    await decide(tk, await asked(tk))
    await idle(tk)

    assert sample_tools.ledger() == []
    assert [item.state for item in await items_of(tk)] == [ItemState.AUTHORIZED]


def restless() -> ScriptedModel:
    """Return a model that makes the given calls, then looks things up for ever."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        times = len(model.seen)
        if times == 1:
            return sample_tools.answer(messages)
        return calling(("look_up", {"order": "1"}, f"l{times}"))

    model = ScriptedModel(reply=reply)
    return model


@pytest.mark.parametrize("limit", ["recursion", "model calls"])
async def test_a_limit_is_reached_once_after_approval(tk: Keyturn, limit: str) -> None:
    model = restless()
    middleware = (
        [ModelCallLimitMiddleware(run_limit=4, exit_behavior="error")]
        if limit == "model calls"
        else []
    )
    graph = agent(*middleware, model=model)
    run = asyncio.create_task(
        tk.run(
            graph,
            refund(),
            thread_id="t1",
            agent="shop",
            config={"recursion_limit": LIMIT if limit == "recursion" else 1000},
        )
    )
    await decide(tk, await asked(tk))
    with pytest.raises(GraphError, match=r"given up: .*(Recursion|Limit)"):
        await run
    calls = len(model.seen)
    await recovered_elsewhere(tk, graph)
    await idle(tk)

    # Each call of the model takes two steps, and two were made before the approval.
    assert calls == len(model.seen) <= LIMIT / 2 + 2
    assert [line.split()[0] for line in sample_tools.ledger()].count("refund") == 1
