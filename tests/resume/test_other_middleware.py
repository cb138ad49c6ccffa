"""No card waits for a call that another middleware keeps from running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import (
    AgentMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.gates.gate import is_guarded
from keyturn.gateway.protocol.records import ItemState
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.programs import (
    AT,
    asked,
    begin,
    calling_tools,
    decide,
    items_of,
    pay,
    saying,
    words,
)
from tests.resume.test_halted_threads import agent

SLOW = [("slow", {"order": "1", "seconds": 0})]
REFUNDS = [("refund", {"order": order, "amount": 5}) for order in ("1", "2")]


async def test_a_limits_error_withdraws_its_cards(tk: Keyturn) -> None:
    graph = agent(ToolCallLimitMiddleware(run_limit=1, exit_behavior="error"))

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
