"""A middleware that retries tools loses no call that people approved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.store.store import Store
from tests.resume.paying import RUNS, pay, paying_program
from tests.resume.test_own_graphs import approve, asked

TRIES = 3


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    async with paying_program(store, tmp_path) as one:
        yield one


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


def agent(bank: Bank, outer: AgentMiddleware[Any, Any, Any]) -> Any:
    """Return an agent that pays, with a middleware before ours."""
    make = cast("Callable[..., Any]", create_agent)
    return make(
        scripted([calling(("pay", {"order": "1"}, "c1"))]),
        [guarded(pay, recheck=bank.state)],
        middleware=[outer, ApprovalMiddleware("shop")],
        checkpointer=InMemorySaver(),
    )


async def result(tk: Keyturn, graph: Any) -> str:
    """Run a thread whose one call is approved; return the message of the tool."""
    given = {"messages": [("user", "pay")]}
    run = tk.run(graph, given, thread_id="t1", agent="shop", timeout_s=60)
    running = asyncio.create_task(run)
    await approve(tk, await asked(tk, "t1"))
    return str((await running)["messages"][-2].text)


@pytest.mark.parametrize("fails", [1, TRIES + 1])
async def test_an_outage_after_the_approval_is_waited_for(
    tk: Keyturn, fails: int
) -> None:
    bank = Bank(fails)
    retrying = ToolRetryMiddleware(max_retries=TRIES - 1, initial_delay=0, jitter=False)

    assert await result(tk, agent(bank, retrying)) == "paid 1"
    assert RUNS == ["1"]
    assert bank.reads == fails + 2


async def test_a_call_that_is_handled_twice_is_asked_about_once_and_runs_once(
    tk: Keyturn,
) -> None:
    assert await result(tk, agent(Bank(0), Twice())) == "paid 1"
    assert RUNS == ["1"]
