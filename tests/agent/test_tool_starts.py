"""Below a gated agent no tool starts that no gate has cleared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

from keyturn.agent import ApprovalMiddleware, require_approval
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.errors import UngatedTool
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.agent.agent_runner import CONFIG, Effects, Runner, by_call, item_of, pay
from tests.agent.fake_gateway import FakeGateway

TIERS = {"delegate": Tier.AUTO, "task": Tier.AUTO, "look_up": Tier.AUTO}
DELEGATE = calling(("delegate", {"job": "pay ada"}, "d1"))
REFUSED = (
    "The tool failed: \"UngatedTool: The tool 'pay' did not run: it was started inside "
    "the agent 'boss'"
)

Below = Callable[[Any, Any], Any]
"""Runs something below a tool: gets an ungated agent that pays, and the tool itself."""


def _ungated(model: ScriptedModel, tools: list[BaseTool]) -> Any:
    return cast("Any", create_agent)(model, tools)


def _inner(effects: Effects, *replies: AIMessage) -> Any:
    script = scripted(list(replies or (pay(1), AIMessage("ada is paid"))))
    return _ungated(script, effects.tools(is_guarded=False))


def _boss(gateway: FakeGateway, delegate: BaseTool, *replies: AIMessage) -> Any:
    made: Any = create_agent(
        scripted(list(replies or (DELEGATE, AIMessage("over")))),
        [delegate],
        middleware=[ApprovalMiddleware("boss", gateway=gateway)],
        checkpointer=InMemorySaver(),
    )
    return made


def _delegate(work: Callable[[str], Any], awork: Callable[[str], Any]) -> BaseTool:
    async def run_async(job: str) -> str:
        """Delegate to another agent."""
        return str(await awork(job))

    def run(job: str) -> str:
        """Delegate to another agent."""
        return str(work(job))

    made = tool("delegate")(run)
    cast("Any", made).coroutine = run_async
    return made


def _given(job: str) -> dict[str, Any]:
    return {"messages": [("user", job)]}


def _delegate_to(inner: Any, options: RunnableConfig | None = None) -> BaseTool:
    return _delegate(
        lambda job: inner.invoke(_given(job), options),
        lambda job: inner.ainvoke(_given(job), options),
    )


@pytest.mark.parametrize("options", [None, {"callbacks": []}])
async def test_an_agent_without_a_gate_starts_no_tool_and_the_parent_is_told(
    runner: Runner, options: RunnableConfig | None
) -> None:
    inner = _inner(runner)
    graph = _boss(FakeGateway(TIERS), _delegate_to(inner, options))

    end = await runner.say(graph, "pay ada")
    again = await runner.say(graph, "are you there?")

    told = by_call(end)["d1"]
    assert runner.paid == []
    assert told.text.startswith(REFUSED)
    assert told.status == "error"
    assert end["messages"][-1].text == "over"
    assert again["messages"][-1].text == "done"


@pytest.mark.parametrize("tier", [Tier.AUTO, Tier.APPROVE])
async def test_a_tool_of_refused_calls_runs_none(runner: Runner, tier: Tier) -> None:
    begun: list[str] = []

    def work(job: str) -> str:
        begun.append(job)
        return str(runner.tools(is_guarded=False)[0].invoke(PAYMENTS[0]))

    async def awork(job: str) -> str:
        begun.append(job)
        return str(await runner.tools(is_guarded=False)[0].ainvoke(PAYMENTS[0]))

    gateway = FakeGateway({"delegate": tier})
    call = calling(("delegate", {"job": "pay"}, "d1"))
    graph = _boss(gateway, _delegate(work, awork), call, AIMessage("over"))

    end = await runner.say(graph, "pay ada")
    while "__interrupt__" in end:
        gateway.approve(gateway.pending()[0].id)
        end = await runner.resume(graph, gateway)

    assert runner.paid == []
    assert begun == ["pay"]
    assert by_call(end)["d1"].status == "error"
    assert end["messages"][-1].text == "over"


async def test_the_subagent_that_deepagents_adds_starts_no_tool(runner: Runner) -> None:
    args = {"description": "pay ada", "subagent_type": "general-purpose"}
    # One model serves both: the parent delegates, the subagent pays.
    model = scripted([calling(("task", args, "t1")), pay(9), AIMessage("over")])
    graph: Any = create_deep_agent(
        model=model,
        tools=runner.tools(is_guarded=False),
        middleware=[
            ApprovalMiddleware("boss", gateway=FakeGateway({**TIERS, "pay": Tier.DENY}))
        ],
        checkpointer=InMemorySaver(),
    )

    end = await runner.say(graph, "pay ada")

    assert runner.paid == []
    assert by_call(end)["t1"].text.startswith(REFUSED)
    assert end["messages"][-1].text == "over"


async def test_an_auto_approved_tool_needs_a_gate(runner: Runner) -> None:
    inner = _inner(runner, calling(("look_up", {"query": "ada"}, "c1")))
    delegate = _delegate_to(inner)

    end = await runner.say(_boss(FakeGateway(TIERS), delegate), "look ada up")

    assert runner.looked == []
    assert "'look_up' did not run" in by_call(end)["d1"].text


async def test_an_ungated_inner_agent_fails_its_call(runner: Runner) -> None:
    inner = _inner(runner)
    gateway = FakeGateway()
    delegate = _delegate_to(inner)
    graph = _boss(gateway, delegate)
    await runner.say(graph, "pay ada")
    gateway.approve(item_of(gateway, "d1").id)

    end = await runner.resume(graph, gateway)

    assert runner.paid == []
    assert by_call(end)["d1"].text.startswith(REFUSED)
    assert item_of(gateway, "d1").state is ItemState.FAILED
    assert end["messages"][-1].text == "over"


PAYMENTS = [{"amount": 1, "to": "ada"}, {"amount": 2, "to": "bob"}]


def _in_a_pool_with_the_configuration(inner: Any, pays: BaseTool) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inner.invoke, _given("pay"), get_config()).result()


def _sent(inner: Any, pays: BaseTool) -> Any:
    def run(state: MessagesState) -> MessagesState:
        inner.invoke(_given("pay"))
        return state

    builder: Any = StateGraph(MessagesState)
    builder.add_node("run", run)

    def three(state: MessagesState) -> list[Send]:
        return [Send("run", state)] * 3

    builder.add_conditional_edges(START, three, path_map=["run"])
    return builder.compile().invoke(_given("pay"))


async def _never(job: str) -> str:
    raise AssertionError(job)


WAYS: dict[str, Below] = {
    "the tool": lambda _, pays: pays.invoke(PAYMENTS[0]),
    "a pool with the configuration": _in_a_pool_with_the_configuration,
    "a batch": lambda _, pays: pays.batch(cast("Any", PAYMENTS)),
    "a stream": lambda inner, _: list(inner.stream(_given("pay"))),
    "sent": _sent,
}
ASYNC_WAYS: dict[str, Below] = {
    "the tool": lambda _, pays: pays.ainvoke(PAYMENTS[0]),
    "a thread": lambda inner, _: asyncio.to_thread(inner.invoke, _given("pay")),
    "a batch": lambda _, pays: pays.abatch(cast("Any", PAYMENTS)),
    "a gathering": lambda inner, pays: cast("Any", asyncio.gather)(
        inner.ainvoke(_given("pay")), pays.ainvoke(PAYMENTS[0])
    ),
    "a synchronous graph": lambda inner, _: asyncio.to_thread(_sent, inner, _),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_below_avoids_the_check(way: str, effects: Effects) -> None:
    pays = effects.tools(is_guarded=False)[0]
    inner = _inner(effects)
    delegate = _delegate(lambda _: WAYS[way](inner, pays), _never)
    graph = _boss(FakeGateway(TIERS), delegate)

    with run_context.excepting(["delegate"]):
        end = graph.invoke(_given("pay ada"), CONFIG)

    assert effects.paid == []
    assert by_call(end)["d1"].text.startswith(REFUSED)


@pytest.mark.parametrize("way", ASYNC_WAYS)
async def test_no_async_way_avoids_the_check(way: str, effects: Effects) -> None:
    pays = effects.tools(is_guarded=False)[0]
    inner = _inner(effects)

    async def work(_: str) -> Any:
        return await ASYNC_WAYS[way](inner, pays)

    graph = _boss(FakeGateway(TIERS), _delegate(str, work))

    end = await graph.ainvoke(_given("pay ada"), CONFIG)

    assert effects.paid == []
    assert by_call(end)["d1"].text.startswith(REFUSED)


async def test_only_a_named_exception_starts_ungated(runner: Runner) -> None:
    both = calling(("look_up", {"query": "ada"}, "c1")), pay(1, call_id="c2")
    inner = _inner(runner, *both)
    delegate = _delegate_to(inner)

    with run_context.excepting(["look_up"]):
        end = await runner.say(_boss(FakeGateway(TIERS), delegate), "pay ada")

    assert runner.looked == ["ada"]
    assert runner.paid == []
    assert by_call(end)["d1"].text.startswith(REFUSED)


async def test_a_tool_may_gate_its_own_step(effects: Effects) -> None:
    gateway = FakeGateway({**TIERS, "pay": Tier.AUTO})
    pays = effects.tools(is_guarded=False)[0]

    def step(_: str) -> object:
        args = dict(PAYMENTS[0])

        def run(**given: Any) -> Any:
            return pays.invoke(given)

        return require_approval("pay", args, run=run, agent="boss", gateway=gateway)

    graph = _boss(gateway, _delegate(step, _never))

    end = graph.invoke(_given("pay ada"), CONFIG)

    assert effects.paid == [(1, "ada")]
    assert "paid 1.0 to ada" in by_call(end)["d1"].text


async def test_a_model_that_starts_tools_by_itself_is_stopped(runner: Runner) -> None:
    pays = runner.tools(is_guarded=False)[0]

    def pay_inside(messages: list[BaseMessage]) -> AIMessage:
        pays.invoke(PAYMENTS[0])
        return AIMessage(f"done after {len(messages)} messages")

    graph: Any = create_agent(
        ScriptedModel(reply=pay_inside),
        [],
        middleware=[ApprovalMiddleware("boss", gateway=FakeGateway(TIERS))],
        checkpointer=InMemorySaver(),
    )

    with pytest.raises(UngatedTool, match="'pay' did not run"):
        await runner.say(graph, "pay ada")

    assert runner.paid == []


async def test_tools_outside_of_gated_agents_are_left_alone(runner: Runner) -> None:
    pays = runner.tools(is_guarded=False)[0]
    delegate = _delegate(str, _done)
    graph = _boss(FakeGateway(TIERS), delegate)

    await runner.say(graph, "hello")
    pays.invoke(PAYMENTS[0])
    await pays.ainvoke(PAYMENTS[1])

    assert runner.paid == [(1, "ada"), (2, "bob")]


async def _done(job: str) -> str:
    return job
