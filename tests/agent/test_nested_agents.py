"""An inner agent has separate approvals, in the run of the outer one."""

from __future__ import annotations

from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from keyturn.agent import ApprovalMiddleware, connected, edit_messages, gated_subagents
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol.records import ItemState, RunRef, Tier
from tests.agent.agent_runner import (
    Effects,
    Runner,
    build,
    by_call,
    delegating,
    item_of,
    pay,
)
from tests.agent.fake_gateway import FakeGateway

TIERS = {"delegate": Tier.AUTO, "task": Tier.AUTO}
DELEGATE = calling(("delegate", {"job": "pay"}, "d1"))
RUN = RunRef(agent="support", thread="thread-1")
OWN: RunnableConfig = {"configurable": {"thread_id": "payers"}}


def payer(
    gateway: FakeGateway | None,
    effects: Effects,
    *replies: AIMessage,
    is_direct: bool = False,
) -> Any:
    """Return an agent that pays, perhaps with results that are its answer."""
    tools = [
        one.model_copy(update={"return_direct": is_direct}) for one in effects.tools()
    ]
    return create_agent(
        scripted(list(replies or [pay(1), AIMessage("ada is paid")])),
        tools,
        middleware=[ApprovalMiddleware("payer", gateway=gateway)],
    )


def run_of(gateway: FakeGateway, call_id: str) -> RunRef:
    """Return the run that a held call belongs to."""
    return gateway.runs[item_of(gateway, call_id).id]


async def test_a_gated_agent_tool_is_asked_twice(runner: Runner, saver: Any) -> None:
    gateway = FakeGateway()
    inners = {"pay": payer(gateway, runner)}
    graph = build(gateway, [delegating(runner, inners)], DELEGATE, saver=saver)
    await runner.say(graph, "pay ada")
    gateway.approve(item_of(gateway, "d1").id)
    await runner.resume(graph, gateway)
    gateway.approve(item_of(gateway, "c1").id)
    outer_state = item_of(gateway, "d1").state

    end = await runner.resume(graph, gateway)

    assert outer_state is ItemState.AUTHORIZED
    assert runner.paid == [(1, "ada")]
    assert item_of(gateway, "d1").state is ItemState.EXECUTED
    assert by_call(end)["d1"].text == "ada is paid"
    assert run_of(gateway, "c1") == RUN


@pytest.mark.parametrize("first", [0, 1])
async def test_siblings_tell_an_edit_once(runner: Runner, first: int) -> None:
    gateway = FakeGateway(TIERS)
    inners = {to: payer(gateway, runner, pay(1, to)) for to in ("ada", "bob")}
    both = [("delegate", {"job": to}, to) for to in inners]
    model = scripted([calling(*both)])
    tools = [delegating(runner, inners)]
    graph = build(gateway, tools, model=model)
    await runner.say(graph, "pay them")
    items = list(gateway.items.values())
    for item in (items[first], items[1 - first]):
        gateway.edit(item.id, {**item.args, "amount": 7})
        await runner.resume(graph, gateway)

    read = model.seen[-1]

    assert len(runner.paid) == 2
    result = next(message for message in read if isinstance(message, ToolMessage))
    assert result.text.count("[keyturn:") == 1
    assert str(read).count("[keyturn:edited]") == 2


@pytest.mark.parametrize("first", ["c1", "c2"])
async def test_an_ending_agent_passes_its_edits_on(runner: Runner, first: str) -> None:
    """No model call follows that would see the calls before the second pause."""
    gateway = FakeGateway(TIERS)
    both = calling(
        ("pay", {"amount": 1, "to": "ada"}, "c1"),
        ("pay", {"amount": 1, "to": "bob"}, "c2"),
    )
    inners = {"pay": payer(gateway, runner, both, is_direct=True)}
    graph = build(gateway, [delegating(runner, inners)], DELEGATE)
    await runner.say(graph, "pay them")
    for call_id in sorted(["c1", "c2"], key=lambda one: one != first):
        item = item_of(gateway, call_id)
        gateway.edit(item.id, {**item.args, "amount": 7})
        await runner.resume(graph, gateway)

    state = await runner.state(graph)

    told = [one.record.edited_args["to"] for one in edit_messages(state.values)]
    assert sorted(runner.paid) == [(7, "ada"), (7, "bob")]
    assert sorted(map(str, told)) == ["ada", "bob"]
    assert by_call(state.values)["d1"].text.count("[keyturn:edited]") == 2


@pytest.mark.parametrize("config", [None, OWN])
async def test_an_agent_in_a_tool_is_at_home_outside_but_for_a_thread_of_its_own(
    runner: Runner,
    config: RunnableConfig | None,
) -> None:
    gateway = FakeGateway(TIERS)
    # One in its own thread keeps checkpoints.
    inner = payer(gateway, runner).copy(
        update={"checkpointer": InMemorySaver() if config else None}
    )
    tools = [delegating(runner, {"pay": inner}, config)]
    graph = build(gateway, tools, DELEGATE)

    await runner.say(graph, "pay ada")

    own = RunRef(agent="payer", thread="payers")
    assert run_of(gateway, "c1") == (own if config else RUN)


@pytest.mark.parametrize("given", [RunRef(agent="flow", thread="thread-1"), None])
async def test_a_node_is_at_home_outside(runner: Runner, given: RunRef | None) -> None:
    gateway = FakeGateway()
    builder: Any = StateGraph(MessagesState)
    builder.add_node("payer", payer(None, runner))
    builder.add_edge(START, "payer")
    builder.add_edge("payer", END)
    graph = builder.compile(checkpointer=runner.memory)

    with connected(gateway, given):
        await runner.say(graph, "pay ada")

    assert run_of(gateway, "c1") == (given or RunRef(agent="payer", thread="thread-1"))


async def test_new_words_end_what_waits_inside_a_tool_at_once(runner: Runner) -> None:
    gateway = FakeGateway(TIERS)
    tools = [delegating(runner, {"pay": payer(gateway, runner)})]
    graph = build(gateway, tools, DELEGATE, AIMessage("as you like"))
    await runner.say(graph, "pay ada")
    waiting = item_of(gateway, "c1")

    await runner.say(graph, "never mind")

    assert waiting.is_pending
    assert item_of(gateway, "c1").state is ItemState.SUPERSEDED
    assert runner.paid == []


PAYER: dict[str, Any] = {"name": "payer", "description": "P.", "system_prompt": "P."}
FORKED = {**PAYER, "name": "forked", "mode": "fork"}


def _deep(
    gateway: FakeGateway, effects: Effects, kind: str, subagents: list[Any]
) -> Any:
    args = {"description": "pay ada", "subagent_type": kind}
    # One model serves both: the parent delegates, then the subagent pays.
    task = calling(("task", args, "t1"))
    replies = [task, pay(9), AIMessage("paid"), AIMessage("ok")]
    return cast("Any", create_deep_agent)(
        model=scripted(replies),
        tools=effects.tools(is_guarded=False),
        subagents=subagents,
        middleware=[ApprovalMiddleware("boss", gateway=gateway)],
        checkpointer=InMemorySaver(),
    )


@pytest.mark.parametrize("kind", ["general-purpose", "payer", "forked"])
async def test_a_subagents_call_waits_for_people(runner: Runner, kind: str) -> None:
    gateway = FakeGateway(TIERS)
    gated = gated_subagents([PAYER, FORKED], agent="boss", gateway=gateway)
    graph = _deep(gateway, runner, kind, gated)

    await runner.say(graph, "pay ada")
    before = list(runner.paid)
    gateway.approve(item_of(gateway, "c1").id)
    end = await runner.resume(graph, gateway)

    assert before == []
    assert runner.paid == [(9, "ada")]
    assert by_call(end)["t1"].text == "paid"


async def test_a_subagents_own_gate_holds_a_call_once(runner: Runner) -> None:
    gateway = FakeGateway({**TIERS, "pay": Tier.AUTO})
    spec = {**PAYER, "interrupt_on": {"pay": True}}
    gated = gated_subagents([spec], agent="boss", gateway=gateway)
    graph = _deep(gateway, runner, "payer", gated)

    await runner.say(graph, "pay ada")
    gateway.approve(item_of(gateway, "c1").id)
    end = await runner.resume(graph, gateway)

    assert runner.paid == [(9, "ada")]
    assert "__interrupt__" not in end


def test_a_subagent_with_a_gate_is_left_as_it_is() -> None:
    own = {**PAYER, "middleware": [ApprovalMiddleware("payer")]}
    elsewhere = {"name": "far", "description": "Runs elsewhere.", "graph_id": "far"}

    gated = gated_subagents([own, elsewhere], general_purpose=False)

    assert gated == [own, elsewhere]


def test_a_listed_general_purpose_subagent_is_gated_and_not_doubled() -> None:
    listed = {**PAYER, "name": "general-purpose", "skills": ["/skills/"]}

    (gated,) = gated_subagents([listed], agent="boss")

    assert gated["skills"] == ["/skills/"]
    assert [type(one) for one in gated["middleware"]] == [ApprovalMiddleware]


def test_a_compiled_subagent_without_a_gate_is_refused(effects: Effects) -> None:
    tools = effects.tools(is_guarded=False)
    make = cast("Any", create_agent)
    bare = make(scripted([]), tools)
    gate = ApprovalMiddleware("payer")
    gated = make(scripted([]), tools, middleware=[gate])
    spec = {"name": "payer", "description": "Pays."}

    with pytest.raises(GraphError, match=r"'payer' can start .* 'look_up', 'pay'"):
        gated_subagents([{**spec, "runnable": bare}])

    good = {**spec, "runnable": gated}
    assert gated_subagents([good], general_purpose=False) == [good]
