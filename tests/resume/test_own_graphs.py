"""Each thread is brought forward by the graph, config and context it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain.tools import ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, NotAllowed
from keyturn.gateway.gates.gate import is_guarded
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    Open,
    asked,
    begin,
    calling_tools,
    decide,
    idle,
    in_process,
    items_of,
    pay,
    recovered_elsewhere,
    refund,
    saying,
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


# Breakpoints work at every node, and a recursion limit is reached once.


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


def stepping_agent(*middleware: Any, model: Any = None, **options: Any) -> Graph:
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
        stepping_agent(interrupt_before=["tools"]),
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
    graph = beside(stepping_agent(), hidden)

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
    graph = stepping_agent(*middleware, model=model)
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


# No card waits for a call that another middleware keeps from running.


SLOW = [("slow", {"order": "1", "seconds": 0})]
REFUNDS = [("refund", {"order": order, "amount": 5}) for order in ("1", "2")]


async def test_a_limits_error_withdraws_its_cards(tk: Keyturn) -> None:
    graph = stepping_agent(ToolCallLimitMiddleware(run_limit=1, exit_behavior="error"))

    with pytest.raises(Exception, match="limit"):
        await tk.run(graph, calling_tools(*REFUNDS), **AT)
    states = [item.state for item in await items_of(tk)]
    end = await tk.run(graph, saying("hello"), **AT, timeout_s=60)

    assert states == [ItemState.WITHDRAWN] * 2
    assert words(end) == "You said hello"
    assert sample_tools.ledger() == []


class Invoking(AgentMiddleware[Any, Any, Any]):
    """Runs the tool itself and skips all inner hooks."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        del handler
        return await request.tool.ainvoke(request.tool_call)


async def test_a_tool_run_by_another_middleware_does_not_run(tk: Keyturn) -> None:
    make = cast("Callable[..., Any]", create_agent)
    graph = make(
        sample_tools.obedient(),
        tools=[sample_tools.slow, sample_tools.look_up],
        middleware=[Invoking(), ApprovalMiddleware("shop")],
    )

    with pytest.raises(NotAllowed, match="this call was not cleared"):
        await tk.run(graph, calling_tools(*SLOW), **AT)

    assert sample_tools.ledger() == []
    assert not is_guarded(sample_tools.slow)


TRIES = 3


class Bank:
    """A state that cannot be read for a while after it was read once."""

    def __init__(self, fails: int) -> None:
        self.fails, self.reads = fails, 0

    def state(self, order: str) -> str:
        """Return the state."""
        self.reads += 1
        if 1 < self.reads <= 1 + self.fails:
            raise ConnectionError
        return f"state of {order}"


class Twice(AgentMiddleware[Any, Any, Any]):
    """Handles each call twice, one after the other."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        await handler(request)
        return await handler(request)


RETRYING = ToolRetryMiddleware(max_retries=TRIES - 1, initial_delay=0, jitter=False)


def paying(bank: Bank, outer: AgentMiddleware[Any, Any, Any], saver: Any) -> Any:
    """Return an agent that pays, with another middleware around its gate."""
    return cast("Any", create_agent)(
        scripted([calling(("pay", {"order": "1"}, "c1"))]),
        [guarded(pay, recheck=bank.state)],
        middleware=[outer, ApprovalMiddleware("shop")],
        checkpointer=saver,
    )


@pytest.mark.parametrize(
    ("outer", "fails"),
    [(RETRYING, 1), (RETRYING, TRIES + 1), (Twice(), 0)],
    ids=["short outage", "long outage", "handled twice"],
)
async def test_a_call_that_is_tried_again_is_asked_about_once_and_runs_once(
    tk: Keyturn, outer: AgentMiddleware[Any, Any, Any], fails: int
) -> None:
    bank = Bank(fails)

    graph = paying(bank, outer, InMemorySaver())
    run = begin(tk, graph, saying("pay"), timeout_s=60)
    await decide(tk, await asked(tk))

    assert (await run)["messages"][-2].text == "paid 1"
    assert sample_tools.ledger() == ["paid 1"]
    assert bank.reads == fails + 2


async def test_an_outage_of_an_inner_agent_leaves_a_doubt(tk: Keyturn) -> None:
    """It has begun, and only people can determine its result."""
    inner = paying(Bank(1), Twice(), None)

    @tool
    async def charge(order: str) -> str:
        """Charge, then call another agent that pays."""
        sample_tools.note("charged")
        return str(await inner.ainvoke({"messages": [("user", order)]}))

    outer = cast("Any", create_agent)(
        scripted([calling(("charge", {"order": "1"}, "o1"))]),
        [guarded(charge)],
        middleware=[ApprovalMiddleware("shop")],
        checkpointer=InMemorySaver(),
    )
    run = begin(tk, outer, saying("go"))

    async def is_in_doubt() -> bool:
        items = await items_of(tk)
        for item in items:
            if item.is_pending:
                await decide(tk, item)
        return any(item.state is ItemState.IN_DOUBT for item in items)

    await eventually(is_in_doubt)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    # Once before the inner call was asked about, once after.
    assert sample_tools.ledger() == ["charged"] * 2
