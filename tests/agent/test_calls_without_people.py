"""A call that the policy allows runs without a pause, and its end is recorded."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from keyturn.agent import Approved, Unsure, guarded
from keyturn.agent.messages import ITEM_KEY, RECONCILED_KEY
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol import texts
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.wire import CallEnd
from tests.agent.agent_runner import (
    CONFIG,
    GO,
    Runner,
    build,
    by_call,
    step_graph,
)
from tests.agent.fake_gateway import FakeGateway


def broken() -> None:
    """Fail as a tool may."""
    raise RuntimeError("no money")


def handing_over(gateway: FakeGateway, saver: InMemorySaver) -> Any:
    """Return a graph around an agent whose tool hands over to another node."""

    @tool
    def hand_over() -> Command[Any]:
        """Hand over."""
        return Command(graph=Command.PARENT, goto="other")

    def other(state: MessagesState) -> MessagesState:
        return state

    inner = build(gateway, [guarded(hand_over)], calling(("hand_over", {}, "c1")))
    outer: Any = StateGraph(MessagesState)
    outer.add_node("agent", inner)
    outer.add_node("other", other)
    outer.add_edge(START, "agent")
    return outer.compile(checkpointer=saver)


def asking_inside(gateway: FakeGateway, saver: InMemorySaver) -> Any:
    """Return an agent whose tool pauses to ask."""

    @tool
    def ask() -> str:
        """Ask a person."""
        return f"said {interrupt('what?')}"

    return build(gateway, [guarded(ask)], calling(("ask", {}, "c1")), saver=saver)


WIRE = {"amount": 1}
AUTO = {"pay": Tier.AUTO, "look_up": Tier.AUTO, "ask": Tier.AUTO}
TURN = calling(
    ("pay", {"amount": 10, "to": "ada"}, "c1"), ("look_up", {"query": "x"}, "c2")
)


def end_of(gateway: FakeGateway, tool: str) -> CallEnd:
    """Return the one reported end of a tool's call."""
    (end,) = [one for one in gateway.ends if one.tool == tool]
    return end


async def test_every_call_without_a_record_tells_its_end(runner: Runner) -> None:
    gateway = FakeGateway(AUTO)
    graph = build(gateway, runner.tools(), TURN)

    await runner.say(graph, "pay")

    end = end_of(gateway, "pay")
    assert (end.tool, end.tool_call_id) == ("pay", "c1")
    assert (end.ref.agent, end.ref.thread) == ("support", "thread-1")
    assert (end.result.ok, end.result.summary) == (True, "paid 10.0 to ada")
    assert "paid 10.0 to ada" in end.result.payload
    assert end_of(gateway, "look_up").result.ok


async def test_a_call_that_fails_tells_so_and_raises(runner: Runner) -> None:
    gateway = FakeGateway(AUTO)
    runner.inside = broken
    graph = build(gateway, runner.tools(), TURN)

    with pytest.raises(RuntimeError, match="no money"):
        await runner.say(graph, "pay")

    end = end_of(gateway, "pay")
    assert (end.result.ok, end.is_over) == (False, False)
    assert "RuntimeError" in end.result.summary


async def test_without_kept_results_only_a_failure_is_told(runner: Runner) -> None:
    def refuse(query: str) -> str:
        """Find nothing."""
        raise ToolException(query)

    gateway = FakeGateway(AUTO)
    gateway.keeps_results = False
    pay, _ = runner.tools()
    look_up = StructuredTool.from_function(
        refuse, name="look_up", handle_tool_error=True
    )
    graph = build(gateway, [pay, look_up], TURN)

    await runner.say(graph, "pay")

    assert runner.paid == [(10, "ada")]
    assert [one.tool for one in gateway.ends] == ["look_up"]
    assert not end_of(gateway, "look_up").result.ok


async def test_an_unkept_call_needs_no_leave_to_begin(runner: Runner) -> None:
    gateway = FakeGateway(AUTO)
    gateway.is_keeping = False
    graph = build(gateway, runner.tools(), TURN)

    await runner.say(graph, "pay")

    assert runner.paid == [(10, "ada")]
    assert "begin" not in gateway.calls
    assert gateway.ends == []


async def test_a_gateway_that_is_gone_by_the_end_stops_nobody(runner: Runner) -> None:
    gateway = FakeGateway(AUTO)
    gateway.down.add("ended")
    graph = build(gateway, runner.tools(), TURN)

    state = await runner.say(graph, "pay")

    assert by_call(state)["c1"].text == "paid 10.0 to ada"
    assert gateway.calls["ended"] == 2


async def test_a_pause_inside_a_call_is_no_end(runner: Runner) -> None:
    gateway = FakeGateway(AUTO)
    graph = asking_inside(gateway, runner.memory)

    await runner.say(graph, "ask")
    before = list(gateway.ends)
    await runner.run(graph, Command(resume="yes"), CONFIG)

    assert before == []
    assert [end.result.summary for end in gateway.ends] == ["said yes"]


async def test_a_tool_that_hands_over_has_ended(memory: InMemorySaver) -> None:
    gateway = FakeGateway({"hand_over": Tier.AUTO})
    await Runner(is_async=True).say(handing_over(gateway, memory), "go")

    assert [end.result.ok for end in gateway.ends] == [True]


@pytest.mark.parametrize("is_broken", [False, True])
async def test_a_plain_step_reports_its_end(runner: Runner, *, is_broken: bool) -> None:
    gateway = FakeGateway({"wire": Tier.AUTO})

    def wire(amount: int) -> str:
        if is_broken:
            broken()
        return f"wired {amount}"

    graph = step_graph(runner, runner.memory, "wire", WIRE, run=wire, gateway=gateway)

    if is_broken:
        with pytest.raises(RuntimeError, match="no money"):
            await runner.run(graph, GO)
    else:
        state = await runner.run(graph, GO)
        assert isinstance(state["outcome"], Approved)

    (end,) = gateway.ends
    assert (end.tool, end.result.ok) == ("wire", not is_broken)


NOTIFIED = {"pay": Tier.NOTIFY, "ask": Tier.NOTIFY, "look_up": Tier.AUTO}
PAY = calling(("pay", {"amount": 10, "to": "ada"}, "c1"))


async def test_it_runs_under_a_claim_without_a_pause(runner: Runner) -> None:
    gateway = FakeGateway(NOTIFIED)
    graph = build(gateway, runner.tools(), PAY)

    state = await runner.say(graph, "pay")

    item = gateway.only()
    answer = by_call(state)["c1"]
    assert answer.text == "paid 10.0 to ada"
    assert answer.additional_kwargs[ITEM_KEY] == item.id
    assert (item.state, item.fence) == (ItemState.EXECUTED, 1)
    assert item.result is not None
    assert "paid 10.0 to ada" in item.result.summary
    assert [gateway.calls[name] for name in ("claim", "begin", "ended")] == [1, 0, 0]


async def test_a_cut_off_call_is_told_of_and_the_agent_goes_on(runner: Runner) -> None:
    gateway = FakeGateway(NOTIFIED)

    def lose() -> None:
        item = gateway.only()
        if item.state is ItemState.AUTHORIZED:
            gateway.claim_and_die(item)

    gateway.before["claim"] = lose
    graph = build(gateway, runner.tools(), PAY)

    state = await runner.say(graph, "pay")

    answer = by_call(state)["c1"]
    assert answer.text == texts.CUT_OFF
    assert answer.additional_kwargs[RECONCILED_KEY]
    assert runner.paid == []
    assert gateway.only().state is ItemState.IN_DOUBT


async def test_what_ran_before_is_given_back(runner: Runner) -> None:
    gateway = FakeGateway(NOTIFIED)
    graph = build(gateway, runner.tools(), PAY)
    await runner.say(graph, "pay")
    history = [one async for one in graph.aget_state_history(CONFIG)]
    before = next(one for one in history if one.next == ("tools",))

    state = await runner.run(graph, None, before.config)

    assert by_call(state)["c1"].text == "paid 10.0 to ada"
    assert len(runner.paid) == 1


async def test_a_turn_that_moved_on_gets_its_result_back(runner: Runner) -> None:
    gateway = FakeGateway(NOTIFIED)
    graph = build(gateway, runner.tools(), PAY)
    await runner.say(graph, "pay")
    messages = (await graph.aget_state(CONFIG)).values["messages"]
    made = next(one for one in messages if isinstance(one, ToolMessage))
    guess = made.model_copy(update={"content": "?", "additional_kwargs": {}})
    await graph.aupdate_state(CONFIG, {"messages": [guess]})

    state = await runner.run(graph, {"messages": [HumanMessage("go on")]}, CONFIG)

    assert by_call(state)["c1"].text == "paid 10.0 to ada"


async def test_a_step_that_was_cut_off_is_unsure(runner: Runner) -> None:
    gateway = FakeGateway({"wire": Tier.NOTIFY})
    ran: list[int] = []

    gateway.before["claim"] = lambda: gateway.claim_and_die(gateway.only())

    def wire(amount: int) -> None:
        ran.append(amount)

    graph = step_graph(runner, runner.memory, "wire", WIRE, run=wire, gateway=gateway)

    state = await runner.run(graph, GO)

    assert state["outcome"] == Unsure(texts.CUT_OFF)
    assert ran == []
