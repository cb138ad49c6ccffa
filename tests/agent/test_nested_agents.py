"""An inner agent has separate approvals, and its edits reach the outer one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, edit_messages
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.agent.agent_runner import Effects, Runner, by_call, item_of, pay
from tests.agent.fake_gateway import FakeGateway

TIERS = {"delegate": Tier.AUTO, "task": Tier.AUTO}
DELEGATE = calling(
    ("delegate", {"job": "pay ada"}, "d1"), ("delegate", {"job": "pay bob"}, "d2")
)


def _inner(
    gateway: FakeGateway, effects: Effects, *replies: AIMessage, is_direct: bool = False
) -> tuple[Any, ScriptedModel]:
    model = scripted(list(replies))
    tools = effects.tools()
    graph = create_agent(
        model,
        [one.model_copy(update={"return_direct": is_direct}) for one in tools],
        middleware=[ApprovalMiddleware("payer", gateway=gateway)],
    )
    return graph, model


def _delegating(inners: dict[str, Any], *, is_async: bool) -> BaseTool:
    async def adelegate(job: str) -> str:
        """Call another agent."""
        end = await inners[job].ainvoke({"messages": [("user", job)]})
        return str(end["messages"][-1].text)

    def delegate(job: str) -> str:
        """Call another agent."""
        end = inners[job].invoke({"messages": [("user", job)]})
        return str(end["messages"][-1].text)

    if is_async:
        return tool("delegate")(adelegate)
    return tool(delegate)


def _outer(
    gateway: FakeGateway, tools: list[BaseTool], saver: Any, *replies: AIMessage
) -> tuple[Any, ScriptedModel]:
    model = scripted(list(replies))
    graph = create_agent(
        model,
        tools,
        middleware=[ApprovalMiddleware("boss", gateway=gateway)],
        checkpointer=saver,
    )
    return graph, model


async def test_a_gated_tool_with_an_agent_inside_is_asked_twice_and_runs_once(
    runner: Runner, saver: Any, effects: Effects
) -> None:
    gateway = FakeGateway()
    inner, _ = _inner(gateway, effects, pay(1, "ada"), AIMessage("ada is paid"))
    delegate = _delegating({"pay ada": inner}, is_async=runner.is_async)
    graph, _ = _outer(
        gateway, [delegate], saver, calling(("delegate", {"job": "pay ada"}, "d1"))
    )
    await runner.say(graph, "pay ada")
    gateway.approve(item_of(gateway, "d1").id)
    await runner.resume(graph, gateway)
    gateway.approve(item_of(gateway, "c1").id)
    outer_state = item_of(gateway, "d1").state

    end = await runner.resume(graph, gateway)

    assert outer_state is ItemState.AUTHORIZED
    assert effects.paid == [(1, "ada")]
    assert item_of(gateway, "d1").state is ItemState.EXECUTED
    assert by_call(end)["d1"].text == "ada is paid"


@pytest.mark.parametrize("first", [0, 1])
async def test_an_edit_is_not_told_twice_when_siblings_settle_one_by_one(
    runner: Runner, memory: InMemorySaver, effects: Effects, first: int
) -> None:
    gateway = FakeGateway(TIERS)
    inners = {
        f"pay {to}": _inner(gateway, effects, pay(1, to), AIMessage(f"{to} is paid"))[0]
        for to in ("ada", "bob")
    }
    delegate = _delegating(inners, is_async=runner.is_async)
    graph, model = _outer(gateway, [delegate], memory, DELEGATE)
    await runner.say(graph, "pay them")
    items = list(gateway.items.values())
    for item in (items[first], items[1 - first]):
        gateway.edit(item.id, {**item.args, "amount": 7})
        await runner.resume(graph, gateway)

    read = model.seen[-1]

    assert len(effects.paid) == 2
    result = next(message for message in read if isinstance(message, ToolMessage))
    assert result.text.count("[keyturn:") == 1
    assert str(read).count("[keyturn:edited]") == 2


@pytest.mark.parametrize("first", ["c1", "c2"])
async def test_an_agent_that_ends_with_its_tools_tells_of_the_edits_to_all_of_them(
    runner: Runner, memory: InMemorySaver, effects: Effects, first: str
) -> None:
    """No model call follows that would see the calls before the second pause."""
    gateway = FakeGateway(TIERS)
    both = calling(
        ("pay", {"amount": 1, "to": "ada"}, "c1"),
        ("pay", {"amount": 1, "to": "bob"}, "c2"),
    )
    inner, _ = _inner(gateway, effects, both, is_direct=True)
    delegate = _delegating({"pay them": inner}, is_async=runner.is_async)
    graph, _ = _outer(
        gateway, [delegate], memory, calling(("delegate", {"job": "pay them"}, "d1"))
    )
    await runner.say(graph, "pay them")
    for call_id in sorted(["c1", "c2"], key=lambda one: one != first):
        item = item_of(gateway, call_id)
        gateway.edit(item.id, {**item.args, "amount": 7})
        await runner.resume(graph, gateway)

    state = await runner.state(graph)

    told = [one.record.edited_args["to"] for one in edit_messages(state.values)]
    assert sorted(effects.paid) == [(7, "ada"), (7, "bob")]
    assert sorted(map(str, told)) == ["ada", "bob"]
    assert by_call(state.values)["d1"].text.count("[keyturn:edited]") == 2
