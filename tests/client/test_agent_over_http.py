"""An agent that has only a URL and a key: gated, approved, resumed, run once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its types are partial
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from keyturn.agent import (
    ApprovalMiddleware,
    Approved,
    arequire_approval,
    gated_subagents,
    guarded,
)
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.errors import KeyRefused, SettingsError
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ANA, ServiceHarness

WRONG = "tk_" + "0" * 16 + "_" + "0" * 64
CONFIG: Any = {"configurable": {"thread_id": "t1"}}
ASKED = {"messages": [("user", "refund")]}
ran: list[float] = []


class State(TypedDict):
    said: str


@guarded
@tool
def process_refund(amount: float) -> str:
    """Refund."""
    ran.append(amount)
    return f"refunded {amount}"


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    ran.clear()
    async with serving(ServiceHarness(store)) as found:
        yield found


def agent(**given: Any) -> Any:
    call = ("process_refund", {"amount": 899.0}, "c1")
    return create_agent(
        scripted([calling(call)]),
        [process_refund],
        middleware=[ApprovalMiddleware("support", **given)],
        checkpointer=InMemorySaver(),
    )


async def decide_edit(stack: ApiStack, item_id: str) -> None:
    click = await stack.harness.click_on(item_id)
    await stack.harness.reviews.decide(click, Edit(args={"amount": 449.5}), ANA)


@pytest.mark.parametrize("by", ["arguments", "environment"])
async def test_an_edited_call_runs_once_as_a_person_left_it(
    stack: ApiStack, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "environment":
        monkeypatch.setenv("KEYTURN_GATEWAY", stack.url)
        monkeypatch.setenv("KEYTURN_API_KEY", stack.key())
        graph = agent()
    else:
        graph = agent(gateway=stack.url, api_key=stack.key())

    paused = await graph.ainvoke(ASKED, CONFIG)
    (question,) = paused["__interrupt__"]
    item_id = question.value["item_id"]
    assert ran == []
    await decide_edit(stack, item_id)
    item = await stack.harness.item(item_id)
    answer = {
        "type": "edit",
        "item_id": item_id,
        "action_hash": question.value["action_hash"],
        "args": item.args,
    }
    resume = Command(resume={question.id: answer})  # type: ignore[var-annotated]
    final = await graph.ainvoke(resume, CONFIG)

    assert ran == [449.5]
    assert "449.5" in str(final["messages"][-2].content)
    assert (await stack.harness.item(item_id)).state == "executed"


@pytest.mark.parametrize("start", ["agent", "node"])
async def test_a_wrong_key_ends_the_run_with_what_to_do(
    stack: ApiStack, start: str
) -> None:
    run = (
        agent(gateway=stack.url, api_key=WRONG).ainvoke(ASKED, CONFIG)
        if start == "agent"
        else ask_in_node(stack.url, WRONG)
    )
    with pytest.raises(KeyRefused, match="KEYTURN_API_KEY"):
        await run
    assert ran == []


async def ask_in_node(url: str, key: str) -> dict[str, Any]:
    async def refund(amount: float) -> str:
        return f"refunded {amount}"

    async def pay(state: State) -> State:
        outcome = await arequire_approval(
            "look_up_order",
            {"amount": 1.0},
            run=refund,
            agent="support",
            gateway=url,
            api_key=key,
        )
        assert isinstance(outcome, Approved)
        return {"said": outcome.result}

    builder: Any = StateGraph(State)
    builder.add_node(pay)
    builder.add_edge(START, "pay")
    builder.add_edge("pay", END)
    graph = builder.compile(checkpointer=InMemorySaver())
    return cast("dict[str, Any]", await graph.ainvoke({"said": ""}, CONFIG))


async def test_a_node_asks_over_http(stack: ApiStack) -> None:
    assert await ask_in_node(stack.url, stack.key()) == {"said": "refunded 1.0"}


def test_a_url_without_a_key_is_refused_when_the_agent_is_made() -> None:
    with pytest.raises(SettingsError, match="KEYTURN_API_KEY"):
        agent(gateway="https://gateway.example")
    with pytest.raises(SettingsError, match="KEYTURN_API_KEY"):
        gated_subagents(gateway="https://gateway.example", general_purpose=False)
