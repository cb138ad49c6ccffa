"""A step's arguments are read by the annotations of its function, once, for all."""

from __future__ import annotations

import uuid
from datetime import date
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import Field
from typing_extensions import TypedDict

from keyturn.agent import Approved, arequire_approval, require_approval
from keyturn.agent.require_approval import canonical_step, step_problem, values
from keyturn.gateway.errors import BadStep
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.agent.agent_runner import Runner
from tests.agent.fake_gateway import FakeGateway


class State(TypedDict):
    """A state that the outcome of a step goes through."""

    outcome: Any


def book(
    day: date, seats: int, key: str = Field(default_factory=lambda: uuid.uuid4().hex)
) -> str:
    """Book seats."""
    return f"{seats} on {day:%d %B}{'' if key else '!'}"


def graph_of(
    runner: Runner, saver: InMemorySaver, gateway: FakeGateway, args: JsonObject
) -> Any:
    def node(_: State) -> State:
        return {"outcome": require_approval("book", args, run=book, gateway=gateway)}

    async def anode(_: State) -> State:
        found: Any = arequire_approval("book", args, run=book, gateway=gateway)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a plain function does too
        return {"outcome": await found}

    builder: Any = StateGraph(State)
    builder.add_node("only", anode if runner.is_async else node)
    builder.add_edge(START, "only")
    builder.add_edge("only", END)
    return builder.compile(checkpointer=saver)


async def test_what_is_approved_is_what_the_function_reads(
    runner: Runner, memory: InMemorySaver
) -> None:
    gateway = FakeGateway()
    graph = graph_of(runner, memory, gateway, {"day": "2026-01-02", "seats": "03"})

    await runner.run(graph, {"outcome": None})
    item = gateway.only()
    gateway.approve(item.id)
    end = await runner.resume(graph, gateway)

    assert item.args == {"day": "2026-01-02", "seats": 3}
    assert end["outcome"] == Approved("3 on 02 January", item.args)


async def test_arguments_that_do_not_fit_are_refused_before_anybody_is_asked(
    runner: Runner, memory: InMemorySaver
) -> None:
    gateway = FakeGateway()
    graph = graph_of(runner, memory, gateway, {"day": "soon", "seats": 3})

    with pytest.raises(BadStep, match="was not submitted: day: Input should be"):
        await runner.run(graph, {"outcome": None})

    assert gateway.items == {}


def test_a_function_that_declares_nothing_gets_what_was_given() -> None:
    args: JsonObject = {"amount": "07"}

    takes: list[Any] = [lambda **_: None, lambda amount: amount, dict]  # pyright: ignore[reportUnknownLambdaType] - that is the point
    for run in takes:
        assert canonical_step(run, args, "t") == args
        assert values(run, args, "t") == args
        assert step_problem(run, args, "t") == ""
