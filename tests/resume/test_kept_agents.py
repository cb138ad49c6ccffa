"""Subagents that keep their state (``checkpointer=True``) and share it are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume.paying import RUNS, pay, paying_program
from tests.resume.test_own_graphs import approve, items_of

GO: dict[str, Any] = {"messages": [("user", "go")]}
make = cast("Callable[..., Any]", create_agent)


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    async with paying_program(store, tmp_path) as one:
        yield one


def obeying(messages: list[Any]) -> AIMessage:
    """Make the last requested payment, then report its result."""
    last = messages[-1]
    if last.type == "tool":
        return AIMessage(last.text)
    return calling(("pay", {"order": last.text}, f"c{len(messages)}"))


def payer(**options: Any) -> Any:
    """Return an agent that pays."""
    middleware = [ApprovalMiddleware("payer")]
    return make(
        ScriptedModel(reply=obeying), [guarded(pay)], middleware=middleware, **options
    )


def named(graph: Any, name: str) -> Any:
    """Return a graph whose one node has this name."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node(name, graph)
    builder.add_edge(START, name)
    return builder.compile()


def lead(inner: dict[str, Any], *turns: AIMessage, **options: Any) -> Any:
    """Return an agent whose tool calls other agents; the policy allows it."""

    @tool
    async def look_up(order: str) -> str:
        """Call another agent that pays."""
        end = await inner[order].ainvoke({"messages": [("user", order)]})
        return str(end["messages"][-1].text)

    middleware = [ApprovalMiddleware("shop")]
    return make(
        scripted([*turns]), [guarded(look_up)], middleware=middleware, **options
    )


def asking(*orders: str) -> AIMessage:
    """Return an answer that asks for these orders at once."""
    return calling(*(("look_up", {"order": one}, f"l{one}") for one in orders))


async def end_of(tk: Keyturn, graph: Any) -> list[str]:
    """Run a thread whose calls are all approved; return what its tools returned."""
    run = tk.run(graph, GO, thread_id="t1", agent="shop", timeout_s=60)
    running = asyncio.create_task(run)

    async def is_done() -> bool:
        for item in await items_of(tk, "t1"):
            if item.is_pending:
                await approve(tk, item)
        return running.done()

    await eventually(is_done)
    return [one.text for one in running.result()["messages"] if one.type == "tool"]


@pytest.mark.parametrize("is_deep", [False, True])
async def test_two_that_share_a_state_side_by_side_are_refused_and_run_nothing(
    tk: Keyturn,
    is_deep: bool,  # noqa: FBT001 - of pytest
) -> None:
    one, two = payer(checkpointer=True), payer(checkpointer=True)
    graph = lead({"1": one, "2": two}, asking("1", "2"))
    outer = named(graph, "lead") if is_deep else graph
    outer = outer.copy(update={"checkpointer": InMemorySaver()})

    with pytest.raises(GraphError, match="compiled with checkpointer=True"):
        await tk.run(outer, GO, thread_id="t1", agent="shop", timeout_s=60)

    assert RUNS == []
    # Either one may have asked first; no message is lost.
    states = {item.state for item in await items_of(tk, "t1")}
    assert states <= {ItemState.PENDING, ItemState.WITHDRAWN}


async def test_one_that_is_asked_again_later_has_its_state_and_runs(
    tk: Keyturn,
) -> None:
    one = payer(checkpointer=True)
    saver = InMemorySaver()
    graph = lead({"1": one, "2": one}, asking("1"), asking("2"), checkpointer=saver)

    assert await end_of(tk, graph) == ["paid 1", "paid 2"]
    assert RUNS == ["1", "2"]


async def test_two_with_names_of_their_own_run_side_by_side(tk: Keyturn) -> None:
    one, two = (named(payer(checkpointer=True), name) for name in ("one", "two"))
    graph = lead({"1": one, "2": two}, asking("1", "2"), checkpointer=InMemorySaver())

    assert await end_of(tk, graph) == ["paid 1", "paid 2"]
    assert sorted(RUNS) == ["1", "2"]
