"""Each thread is brought forward by the graph, config and context it was given."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.tools import ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.approvals.decisions import Approve, Click
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, RULES

TWICE = 2
Open = Callable[[], AbstractAsyncContextManager[Keyturn]]
Graph = Pregel[Any, Any, Any, Any]


@dataclass
class User:
    """Whose credentials a tool uses."""

    name: str


@pytest.fixture
def opened(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open a Keyturn on the test's store, again and again on the same data."""
    monkeypatch.setattr("keyturn.gateway.resume.retries.UNSERVED_MS", 20)

    @asynccontextmanager
    async def one() -> AsyncGenerator[Keyturn]:
        async with Keyturn(policy=RULES, url=store.conn.url, data_dir=tmp_path) as tk:
            yield tk

    return one


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


def calling(name: str, **args: object) -> dict[str, Any]:
    """Return an input that makes the agent call one tool."""
    return {"messages": [{"role": "user", "content": json.dumps([(name, args)])}]}


@pytest.mark.slow
@pytest.mark.parametrize("saver", [lambda: None, InMemorySaver])
async def test_a_graph_built_for_a_request_serves_no_other_thread(
    opened: Open, saver: Callable[[], object]
) -> None:
    users = ("ann", "bob", "cy")
    async with opened() as tk:
        runs = [
            asyncio.create_task(
                tk.run(
                    graph_of(user, checkpointer=saver()),
                    calling("pay", order=f"order of {user}"),
                    thread_id=user,
                    agent="shop",
                )
            )
            for user in users
        ]
        items = [await asked(tk, user) for user in users]
        for item in items:
            await approve(tk, item)
        finals = await asyncio.gather(*runs)

    assert [final["messages"][-1].text for final in finals] == [
        f"paid by {user}" for user in users
    ]
    assert sorted(sample_tools.ledger()) == [
        f"order of {user} paid by {user}" for user in users
    ]


@pytest.mark.slow
async def test_the_job_of_a_thread_that_nobody_runs_waits_for_its_graph(
    opened: Open,
) -> None:
    async with opened() as tk:
        run = asyncio.create_task(
            tk.run(
                graph_of("ann"),
                calling("pay", order="1"),
                thread_id="ann",
                agent="shop",
            )
        )
        item = await asked(tk, "ann")
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    async with opened() as tk:
        hello = {"messages": [{"role": "user", "content": "hello"}]}
        await tk.run(graph_of("bob"), hello, thread_id="bob", agent="shop")
        await approve(tk, item)
        await put_back(tk)
        assert sample_tools.ledger() == []

        final = await tk.run(graph_of("ann"), thread_id="ann", agent="shop")

    assert final["messages"][-1].text == "paid by ann"
    assert sample_tools.ledger() == ["1 paid by ann"]


@pytest.mark.slow
async def test_config_and_context_of_a_run_reach_a_tool_after_the_wait(
    opened: Open,
) -> None:
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
        work = tk.run(
            graph,
            given,
            thread_id=name,
            agent="shop",
            config=config,
            context=User(name),
        )
        return asyncio.create_task(work)

    async with opened() as tk:
        runs = [run(tk, name, calling("pay_me", order=name)) for name in ("ann", "bob")]
        items = [await asked(tk, name) for name in ("ann", "bob")]
        await approve(tk, items[0])
        final = await runs[0]
        runs[1].cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    async with opened() as tk:
        again = run(tk, "bob", None)
        await approve(tk, await asked(tk, "bob"))
        await again

    assert final["messages"][-1].text == "paid for ann"
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
            await tk.run(
                graph_of("ann"),
                calling("pay", order="1"),
                thread_id="t1",
                agent="shop",
                config={"configurable": configurable},
            )

    assert name.removesuffix("_id") in str(refused.value)
    assert sample_tools.ledger() == []


@pytest.mark.slow
async def test_a_finished_thread_leaves_no_graph_behind(opened: Open) -> None:
    async with opened() as tk:

        async def finished() -> weakref.ref[Graph]:
            graph, given = graph_of("ann"), calling("pay", order="1")
            run = tk.run(graph, given, thread_id="ann", agent="shop")
            waiting = asyncio.create_task(run)
            await approve(tk, await asked(tk, "ann"))
            await waiting
            return weakref.ref(graph)

        graph = await finished()
        gc.collect()

        assert graph() is None


async def asked(tk: Keyturn, thread: str) -> Item:
    """Wait for the one pending item of a thread, and until it rests."""
    found: list[Item] = []

    async def is_so() -> bool:
        keys = tk.store.keys_of_tenant("default")
        found.clear()
        if await tk.store.conn.command("EXISTS", keys.lease("shop", thread)):
            return False
        found.extend(item for item in await items_of(tk, thread) if item.is_pending)
        return len(found) == 1

    await eventually(is_so)
    return found[0]


async def items_of(tk: Keyturn, thread: str) -> list[Item]:
    """Return a thread's items."""
    keys = tk.store.keys_of_tenant("default")
    run_ref = RunRef(agent="shop", thread=thread)
    listed = await tk.store.approvals.of_run(keys, run_ref)
    found = await tk.store.approvals.load_each(one.id for one in listed)
    return [item for one in found for item in one.approval.items]


async def approve(tk: Keyturn, item: Item) -> None:
    """Approve an item as it was opened."""
    click = Click(
        approval=approval_of(item.id)[0],
        index=item.index,
        version=1,
        action_hash=item.action_hash,
    )
    await tk.reviews.decide(click, Approve(), ANA)


async def put_back(tk: Keyturn) -> None:
    """Wait until the one job was offered and put back, for the second time."""
    keys = tk.store.keys_of_tenant("default")
    queue = tk.store.queue(keys)

    async def is_so() -> bool:
        given = await tk.store.conn.command("XINFO", "STREAM", keys.jobs)
        rows = cast("list[Any]", given)
        added = rows[rows.index(b"entries-added") + 1]
        return int(added) > TWICE and await queue.depth() == 1

    await eventually(is_so)
