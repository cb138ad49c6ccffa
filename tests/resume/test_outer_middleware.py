"""No card waits for a call that another middleware keeps from running."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import (
    AgentMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain_core.messages import AIMessage, ToolMessage

from keyturn.agent import ApprovalMiddleware
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.gates.gate import is_guarded
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import RULES
from tests.resume.test_halted_threads import agent, items, saying

SLOW = [("slow", {"order": "1", "seconds": 0})]
REFUNDS = [("refund", {"order": order, "amount": 5}) for order in ("1", "2")]


@pytest.fixture
async def tk(store: Store, tmp_path: Path) -> AsyncGenerator[Keyturn]:
    async with Keyturn(policy=RULES, url=store.conn.url, data_dir=tmp_path) as one:
        yield one


class Jumping(AgentMiddleware[Any, Any, Any]):
    """Ends the run instead of calling tools."""

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        call = state["messages"][-1].tool_calls[0]
        told = ToolMessage("not now", tool_call_id=call["id"])
        return {"jump_to": "end", "messages": [told, AIMessage("stopped")]}


async def test_the_error_of_a_limit_withdraws_the_cards_of_its_turn(
    tk: Keyturn,
) -> None:
    graph = agent(ToolCallLimitMiddleware(run_limit=1, exit_behavior="error"))

    with pytest.raises(Exception, match="limit"):
        await tk.run(graph, saying(json.dumps(REFUNDS)), thread_id="t1", agent="shop")
    states = [item.state for item in await items(tk)]
    end = await tk.run(
        graph, saying("hello"), thread_id="t1", agent="shop", timeout_s=60
    )

    assert states == [ItemState.WITHDRAWN] * 2
    assert end["messages"][-1].text == "You said hello"
    assert sample_tools.ledger() == []


async def test_a_jump_past_the_tools_leaves_no_card_behind(tk: Keyturn) -> None:
    end = await tk.run(
        agent(Jumping()),
        saying(json.dumps(REFUNDS[:1])),
        thread_id="t1",
        agent="shop",
        timeout_s=60,
    )

    assert end["messages"][-1].text == "stopped"
    assert [item.state for item in await items(tk)] == [ItemState.WITHDRAWN]


class Invoking(AgentMiddleware[Any, Any, Any]):
    """Runs the tool itself and skips all inner hooks."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        del handler
        return await request.tool.ainvoke(request.tool_call)


async def test_a_plain_tool_that_another_middleware_runs_itself_does_not_run(
    tk: Keyturn,
) -> None:
    make = cast("Callable[..., Any]", create_agent)
    graph = make(
        sample_tools.obedient(),
        tools=[sample_tools.slow, sample_tools.look_up],
        middleware=[Invoking(), ApprovalMiddleware("shop")],
    )

    with pytest.raises(NotAllowed, match="this call was not cleared"):
        await tk.run(graph, saying(json.dumps(SLOW)), thread_id="t1", agent="shop")

    assert sample_tools.ledger() == []
    assert not is_guarded(sample_tools.slow)
