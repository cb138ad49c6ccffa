"""Each thread is brought forward by the graph, config and context it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.tools import ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    Open,
    asked,
    begin,
    calling_tools,
    decide,
    in_process,
    items_of,
    pay,
    words,
)

PAY = calling_tools(("pay", {"order": "1"}))
Graph = Pregel[Any, Any, Any, Any]


@pytest.fixture
def opened(store: Store, tmp_path: Path) -> Open:
    """Open a program in this process, again and again on the same data."""
    return lambda: in_process(store, tmp_path)


@dataclass
class User:
    """Whose credentials a tool uses."""

    name: str


def agent(*tools: BaseTool, **options: Any) -> Graph:
    """Make an agent with these tools."""
    make = cast("Callable[..., Graph]", create_agent)
    middleware = [ApprovalMiddleware("shop")]
    return make(sample_tools.obedient(), tools=tools, middleware=middleware, **options)


def graph_of(user: str, **options: Any) -> Graph:
    """Build the graph of one request: its tool contains the user's credentials."""

    @tool
    def pay(order: str) -> str:
        """Pay."""
        sample_tools.note(f"{order} paid by {user}")
        return f"paid by {user}"

    return agent(guarded(pay), **options)


@tool
def pay_me(order: str, runtime: ToolRuntime[User, Any]) -> str:
    """Pay with what the run was given."""
    configurable = get_config().get("configurable", {})
    sample_tools.note(f"{order} {runtime.context.name} {configurable.get('user_id')}")
    return f"paid for {runtime.context.name}"


@pytest.mark.slow
@pytest.mark.parametrize("saver", [lambda: None, InMemorySaver])
async def test_a_graph_built_for_a_request_serves_no_other_thread(
    opened: Open, saver: Callable[[], object]
) -> None:
    users = ("ann", "bob", "cy")
    async with opened() as tk:
        runs = [
            begin(tk, graph_of(user, checkpointer=saver()), PAY, user) for user in users
        ]
        for item in [await asked(tk, user) for user in users]:
            await decide(tk, item)
        finals = await asyncio.gather(*runs)

    paid = [f"paid by {user}" for user in users]
    assert [words(final) for final in finals] == paid
    assert sorted(sample_tools.ledger()) == [f"1 {one}" for one in paid]


@pytest.mark.slow
async def test_config_and_context_reach_a_tool_after_the_wait(opened: Open) -> None:
    class Seen(BaseCallbackHandler):
        def __init__(self) -> None:
            self.tags: list[str] = []

        def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
            self.tags.extend(kwargs["tags"] or [])

    seen = Seen()
    graph = agent(guarded(pay_me), context_schema=User)

    def run(tk: Keyturn, name: str, given: object) -> asyncio.Task[dict[str, Any]]:
        config: RunnableConfig = {
            "configurable": {"user_id": f"id of {name}", "thread_id": name},
            "callbacks": [seen],
            "tags": [name],
        }
        return begin(tk, graph, given, name, config=config, context=User(name))

    async with opened() as tk:
        runs = [
            run(tk, name, calling_tools(("pay_me", {"order": name})))
            for name in ("ann", "bob")
        ]
        items = [await asked(tk, name) for name in ("ann", "bob")]
        await decide(tk, items[0])
        final = await runs[0]
        runs[1].cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    async with opened() as tk:
        again = run(tk, "bob", None)
        await decide(tk, await asked(tk, "bob"))
        await again

    assert words(final) == "paid for ann"
    assert sample_tools.ledger() == ["ann ann id of ann", "bob bob id of bob"]
    assert {"ann", "bob"} <= {*seen.tags}


@pytest.mark.parametrize(
    "configurable",
    [
        {"thread_id": "other"},
        {"checkpoint_id": "1"},
        {"checkpoint_ns": "x"},
        {"__pregel_resuming": True},
    ],
)
async def test_a_config_that_moves_a_thread_is_refused(
    opened: Open, configurable: dict[str, Any]
) -> None:
    [name] = configurable
    async with opened() as tk:
        with pytest.raises(GraphError, match=r"config\['configurable'\]") as refused:
            await begin(tk, graph_of("ann"), PAY, config={"configurable": configurable})

    assert name.removesuffix("_id") in str(refused.value)
    assert sample_tools.ledger() == []


GO: dict[str, Any] = {"messages": [("user", "go")]}
make = cast("Callable[..., Any]", create_agent)


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
        await tk.run(outer, GO, **AT, timeout_s=60)

    assert sample_tools.ledger() == []
    # Either one may have asked first; no message is lost.
    states = {item.state for item in await items_of(tk)}
    assert states <= {ItemState.PENDING, ItemState.WITHDRAWN}
