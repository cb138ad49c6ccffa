"""Tools and graphs for tests of calls without a pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from keyturn.agent import guarded
from keyturn.agent.require_approval import (
    Outcome,
    arequire_approval,
    require_approval,
)
from keyturn.agent.scripted_model import calling
from tests.agent.agent_runner import build
from tests.agent.fake_gateway import FakeGateway
from tests.agent.test_require_approval import State


def broken() -> None:
    """Fail as a tool may."""
    raise RuntimeError("no money")


def wiring(
    gateway: FakeGateway, wire: Callable[[int], Any], saver: InMemorySaver, *, a: bool
) -> Any:
    """Return a graph of one plain node that wires money."""

    async def awire(amount: int) -> Any:
        return wire(amount)

    def node(state: State) -> State:
        given: Any = {"run": wire, "gateway": gateway}
        return {**state, "outcome": require_approval("wire", {"amount": 1}, **given)}

    async def anode(state: State) -> State:
        given: Any = {"run": awire, "gateway": gateway}
        outcome: Outcome[Any] = await arequire_approval("wire", {"amount": 1}, **given)
        return {**state, "outcome": outcome}

    flow: Any = StateGraph(State)
    flow.add_node("node", anode if a else node)
    flow.add_edge(START, "node")
    return flow.compile(checkpointer=saver)


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
