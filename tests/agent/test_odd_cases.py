"""Odd shapes and bad moments end in a refusal or a truth, never in a surprise."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from keyturn.agent import ApprovalMiddleware, connected, guarded
from keyturn.agent.middleware import with_note
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.wire import AgentNote
from tests.agent.agent_runner import (
    FREE,
    STRICT,
    Effects,
    Runner,
    build,
    by_call,
    pay,
)
from tests.agent.fake_gateway import FakeGateway


async def test_an_approval_resumed_without_a_gateway_does_not_run(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(None, effects.tools(), pay(), saver=memory)
    with connected(gateway):
        await runner.say(graph, "pay")
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert effects.paid == []
    assert "No approval gateway is connected" in by_call(end)["c1"].text


@pytest.mark.usefixtures("quick_beats")
async def test_a_claim_that_was_lost_while_running_changes_nothing_for_the_model(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    second_beat = threading.Event()

    def stumble_then_lose() -> None:
        beats = gateway.calls["heartbeat"]
        gateway.down = {"heartbeat"} if beats == 1 else set()
        if beats == 2:
            gateway.lose_owner("ap0.0")
            second_beat.set()

    gateway.before["heartbeat"] = stumble_then_lose
    effects.inside = lambda: second_beat.wait(10)
    end = await runner.resume(graph, gateway)

    assert second_beat.is_set()
    assert by_call(end)["c1"].text == "paid 10.0 to ada"
    assert gateway.only().state is ItemState.IN_DOUBT


async def test_a_release_that_fails_does_not_hide_the_pause(
    runner: Runner, memory: InMemorySaver
) -> None:
    @guarded
    @tool
    def unlock(door: str) -> str:
        """Unlock a door."""
        return f"{door} {interrupt('pin?')}"

    gateway = FakeGateway()
    turn = calling(("unlock", {"door": "a"}, "c1"))
    graph = build(gateway, [unlock], turn, saver=memory)
    await runner.say(graph, "unlock")
    gateway.approve("ap0.0")
    gateway.down.add("release")

    await runner.resume(graph, gateway)

    (pause,) = (await runner.state(graph)).interrupts
    assert pause.value == "pin?"


async def test_a_tool_that_hands_over_to_an_outer_graph_is_recorded_as_done(
    runner: Runner, memory: InMemorySaver
) -> None:
    ran: list[str] = []

    @guarded
    @tool
    def hand_over(to: str) -> str:
        """Hand over to an external person."""
        ran.append(to)
        raise ParentCommand(Command(graph=Command.PARENT, goto=to))

    gateway = FakeGateway()
    turn = calling(("hand_over", {"to": "boss"}, "c1"))
    graph = build(gateway, [hand_over], turn, saver=memory)
    await runner.say(graph, "hand over")
    gateway.approve("ap0.0")
    answers = await runner.answers(graph, gateway)

    with pytest.raises(ParentCommand):
        await runner.run(graph, Command(resume=answers), STRICT)

    assert ran == ["boss"]
    assert gateway.only().state is ItemState.EXECUTED


async def test_a_call_that_no_message_asks_for_does_not_run(effects: Effects) -> None:
    middleware = ApprovalMiddleware("support", gateway=FakeGateway(FREE))
    tools: list[BaseTool] = effects.tools()
    runtime: Any = SimpleNamespace(tools=tools)

    def handler(request: ToolCallRequest) -> Any:
        raise AssertionError(request)

    for messages in ([], [AIMessage("no calls", id="m1")], [pay()]):
        request = ToolCallRequest(
            tool_call=pay().tool_calls[0],
            tool=tools[0],
            state={"messages": messages},
            runtime=runtime,
        )
        told = middleware.wrap_tool_call(request, handler)
        assert isinstance(told, ToolMessage)
        assert "not cleared" in told.text


async def test_a_tool_whose_schema_is_no_json_schema_is_still_evaluated(
    runner: Runner, memory: InMemorySaver
) -> None:
    class Strange(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        lock: threading.Event | None = None
        amount: float

    @tool(args_schema=Strange)
    def odd(amount: float, lock: Any = None) -> str:
        """Do something odd."""
        return f"odd {amount}"

    gateway = FakeGateway()
    turn = calling(("odd", {"amount": 1}, "c1"))
    graph = build(gateway, [odd], turn, saver=memory)
    await runner.say(graph, "go")
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    (submitted, _) = next(iter(gateway.turns.values()))
    assert submitted.schemas == {}
    assert by_call(end)["c1"].text == "odd 1.0"


@pytest.mark.parametrize("content", ["You help.", [{"type": "text", "text": "You"}]])
def test_the_note_is_added_to_a_system_message_of_either_shape(content: Any) -> None:
    note = AgentNote(gated_tools=("pay",), other_tools_are_gated=True)

    system = with_note(SystemMessage(content), note)

    assert system is not None
    assert system.text.startswith("You")
    assert "approval: pay. Other tools may need it too." in system.text
    assert type(system.content) is type(content)


def test_an_agent_that_needs_nobody_gets_no_note() -> None:
    note = AgentNote(gated_tools=(), other_tools_are_gated=False)

    assert with_note(None, note) is None


async def test_the_state_of_the_middleware_is_plain_json(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway({"look_up": Tier.DENY})
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    await runner.say(graph, "pay")
    gateway.edit("ap0.0", {"amount": 1, "to": "ada"})
    await runner.resume(graph, gateway)

    values = (await runner.state(graph)).values

    for name in ("keyturn_turn", "keyturn_edits"):
        assert _is_plain(values[name]), name


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(member) for member in value.values())  # pyright: ignore[reportUnknownVariableType] - JSON
    if isinstance(value, list):
        return all(_is_plain(element) for element in value)  # pyright: ignore[reportUnknownVariableType] - JSON
    return value is None or type(value) in {str, int, float, bool}
