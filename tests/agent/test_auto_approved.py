"""An agent reports the end of a call of tier auto, and works without an answer."""

from __future__ import annotations

import pytest
from langchain_core.tools import StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from keyturn.agent import Approved
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.wire import CallEnd
from tests.agent.agent_runner import CONFIG, Effects, Runner, build, by_call
from tests.agent.fake_gateway import FakeGateway
from tests.agent.unheld_scenes import asking_inside, broken, handing_over, wiring

AUTO = {"pay": Tier.AUTO, "look_up": Tier.AUTO, "ask": Tier.AUTO}
TURN = calling(
    ("pay", {"amount": 10, "to": "ada"}, "c1"), ("look_up", {"query": "x"}, "c2")
)


def end_of(gateway: FakeGateway, tool: str) -> CallEnd:
    """Return the one reported end of a tool's call."""
    (end,) = [one for one in gateway.ends if one.tool == tool]
    return end


async def test_every_call_without_a_record_tells_its_end(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(AUTO)
    graph = build(gateway, effects.tools(), TURN, saver=memory)

    await runner.say(graph, "pay")

    end = end_of(gateway, "pay")
    assert (end.tool, end.tool_call_id) == ("pay", "c1")
    assert (end.ref.agent, end.ref.thread) == ("support", "thread-1")
    assert (end.result.ok, end.result.summary) == (True, "paid 10.0 to ada")
    assert "paid 10.0 to ada" in end.result.payload
    assert end_of(gateway, "look_up").result.ok


async def test_a_call_that_fails_tells_so_and_raises(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(AUTO)
    effects.inside = broken
    graph = build(gateway, effects.tools(), TURN, saver=memory)

    with pytest.raises(RuntimeError, match="no money"):
        await runner.say(graph, "pay")

    end = end_of(gateway, "pay")
    assert (end.result.ok, end.is_over) == (False, False)
    assert "RuntimeError" in end.result.summary


async def test_where_no_result_is_kept_only_the_end_of_a_failed_call_is_told(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    def refuse(query: str) -> str:
        """Find nothing."""
        raise ToolException(query)

    gateway = FakeGateway(AUTO)
    gateway.keeps_results = False
    pay, _ = effects.tools()
    look_up = StructuredTool.from_function(
        refuse, name="look_up", handle_tool_error=True
    )
    graph = build(gateway, [pay, look_up], TURN, saver=memory)

    await runner.say(graph, "pay")

    assert effects.paid == [(10, "ada")]
    assert [one.tool for one in gateway.ends] == ["look_up"]
    assert not end_of(gateway, "look_up").result.ok


async def test_where_nothing_is_kept_of_a_call_nobody_asks_whether_it_may_begin(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(AUTO)
    gateway.is_keeping = False
    graph = build(gateway, effects.tools(), TURN, saver=memory)

    await runner.say(graph, "pay")

    assert effects.paid == [(10, "ada")]
    assert "begin" not in gateway.calls
    assert gateway.ends == []


async def test_a_gateway_that_is_gone_by_the_end_stops_nobody(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(AUTO)
    gateway.down.add("ended")
    graph = build(gateway, effects.tools(), TURN, saver=memory)

    state = await runner.say(graph, "pay")

    assert by_call(state)["c1"].text == "paid 10.0 to ada"
    assert gateway.calls["ended"] == 2


async def test_a_pause_inside_a_call_is_no_end(
    runner: Runner, memory: InMemorySaver
) -> None:
    gateway = FakeGateway(AUTO)
    graph = asking_inside(gateway, memory)

    await runner.say(graph, "ask")
    before = list(gateway.ends)
    await runner.run(graph, Command(resume="yes"), CONFIG)

    assert before == []
    assert [end.result.summary for end in gateway.ends] == ["said yes"]


async def test_a_tool_that_hands_over_to_a_graph_around_it_has_ended(
    memory: InMemorySaver,
) -> None:
    gateway = FakeGateway({"hand_over": Tier.AUTO})
    await Runner(is_async=True).say(handing_over(gateway, memory), "go")

    assert [end.result.ok for end in gateway.ends] == [True]


@pytest.mark.parametrize("is_broken", [False, True])
async def test_a_step_of_a_plain_node_tells_its_end_too(
    runner: Runner, memory: InMemorySaver, *, is_broken: bool
) -> None:
    gateway = FakeGateway({"wire": Tier.AUTO})

    def wire(amount: int) -> str:
        if is_broken:
            broken()
        return f"wired {amount}"

    graph = wiring(gateway, wire, memory, a=runner.is_async)

    if is_broken:
        with pytest.raises(RuntimeError, match="no money"):
            await runner.run(graph, {"amount": 1})
    else:
        state = await runner.run(graph, {"amount": 1})
        assert isinstance(state["outcome"], Approved)

    (end,) = gateway.ends
    assert (end.tool, end.result.ok) == ("wire", not is_broken)
