"""Breakpoints work at every node, and a recursion limit is reached once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling
from keyturn.gateway.approvals.decisions import Approve, Click
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, AT_ONCE, RULES

Graph = Pregel[Any, Any, Any, Any]
REFUND = [("refund", {"order": "1", "amount": 5})]
HIDDEN: dict[str, Graph] = {}
LIMIT = 12


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    """Open a Keyturn with short pauses between attempts."""
    url = store.conn.url
    async with Keyturn(
        policy=RULES, url=url, data_dir=tmp_path, retries=AT_ONCE
    ) as one:
        yield one


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


def saying(text: str) -> dict[str, Any]:
    """Return an input of one message."""
    return {"messages": [{"role": "user", "content": text}]}


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
async def test_a_breakpoint_that_can_be_seen_is_refused_before_anything_runs(
    tk: Keyturn, node: Graph
) -> None:
    with pytest.raises(GraphError, match=r"graph at .inside.*interrupt_before"):
        await tk.run(
            outer(node), saying(json.dumps(REFUND)), thread_id="t1", agent="shop"
        )

    assert sample_tools.ledger() == []
    assert await items(tk) == []


async def test_a_breakpoint_that_cannot_be_seen_holds_all_the_same(
    tk: Keyturn,
) -> None:
    HIDDEN["graph"] = stopping(interrupt_before=["danger"])
    graph = outer(hidden)

    for given in (saying("go"), saying("go"), None):
        with pytest.raises(GraphError, match="stands at a breakpoint"):
            await tk.run(graph, given, thread_id="t1", agent="shop")
    runner = await tk._runner(graph, "shop")  # pyright: ignore[reportPrivateUsage] - to be a worker of another process
    runners = Runners({"shop": runner}, cast("Any", tk)._saver)
    # A separate store: another secret could verify none of its records.
    await Recovery(tk.store, runners).recover(is_only_process=False)
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


async def test_an_answer_for_one_branch_runs_no_other_through_its_breakpoint(
    tk: Keyturn,
) -> None:
    HIDDEN["graph"] = stopping(interrupt_before=["danger"])
    graph = beside(agent(), hidden)

    with pytest.raises(GraphError, match="stands at a breakpoint"):
        await tk.run(graph, saying(json.dumps(REFUND)), thread_id="t1", agent="shop")
    await approve(tk, await asked(tk))
    await idle(tk)

    assert sample_tools.ledger() == []
    assert [item.state for item in await items(tk)] == [ItemState.AUTHORIZED]


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
async def test_a_limit_that_is_reached_after_an_approval_is_reached_once(
    tk: Keyturn, limit: str
) -> None:
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
            saying(json.dumps(REFUND)),
            thread_id="t1",
            agent="shop",
            config={"recursion_limit": LIMIT if limit == "recursion" else 1000},
        )
    )
    await approve(tk, await asked(tk))
    with pytest.raises(GraphError, match=r"given up: .*(Recursion|Limit)"):
        await run
    calls = len(model.seen)
    runner = await tk._runner(graph, "shop")  # pyright: ignore[reportPrivateUsage] - to be a worker of another process
    recovery = Recovery(tk.store, Runners({"shop": runner}, cast("Any", tk)._saver))
    await recovery.recover(is_only_process=False)
    await idle(tk)

    # Each call of the model takes two steps, and two were made before the approval.
    assert calls == len(model.seen) <= LIMIT / 2 + 2
    assert [line.split()[0] for line in sample_tools.ledger()].count("refund") == 1


async def items(tk: Keyturn) -> list[Item]:
    """Return the thread's items."""
    keys = tk.store.keys_of_tenant("default")
    run_ref = RunRef(agent="shop", thread="t1")
    listed = await tk.store.approvals.of_run(keys, run_ref)
    found = await tk.store.approvals.load_each(one.id for one in listed)
    return [item for one in found for item in one.approval.items]


async def asked(tk: Keyturn) -> Item:
    """Wait for the one pending item, and until the thread rests."""
    keys = tk.store.keys_of_tenant("default")

    async def is_so() -> bool:
        if await tk.store.conn.command("EXISTS", keys.lease("shop", "t1")):
            return False
        return [item.is_pending for item in await items(tk)] == [True]

    await eventually(is_so)
    return (await items(tk))[0]


async def approve(tk: Keyturn, item: Item) -> None:
    """Approve an item as it was opened."""
    click = Click(
        approval=approval_of(item.id)[0],
        index=item.index,
        version=1,
        action_hash=item.action_hash,
    )
    await tk.reviews.decide(click, Approve(), ANA)


async def idle(tk: Keyturn) -> None:
    """Wait until no job is left."""
    queue = tk.store.queue(tk.store.keys_of_tenant("default"))

    async def is_so() -> bool:
        return await queue.depth() == 0

    await eventually(is_so)
