"""A step's function is called with keywords, and a wrong one is found before a card."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from keyturn.agent import Approved, arequire_approval, require_approval
from keyturn.agent.require_approval import binding_problem
from keyturn.gateway.errors import BadStep
from tests.agent.agent_runner import Effects, Runner
from tests.agent.fake_gateway import FakeGateway
from tests.agent.test_require_approval import State


def _graph(runner: Runner, saver: InMemorySaver, run: Any, gateway: Any) -> Any:
    args = {"amount": 5, "to": "ada"}

    def node(state: State) -> State:
        return {
            **state,
            "outcome": require_approval("wire", args, run=run, gateway=gateway),
        }

    async def anode(state: State) -> State:
        outcome = await arequire_approval("wire", args, run=run, gateway=gateway)
        return {**state, "outcome": outcome}

    builder: Any = StateGraph(State)
    builder.add_node("bank", anode if runner.is_async else node)
    builder.add_edge(START, "bank")
    builder.add_edge("bank", END)
    return builder.compile(checkpointer=saver)


def _wire(effects: Effects, runner: Runner) -> Any:
    def wire(to: str, amount: int, note: str = "") -> str:
        effects.paid.append((amount, to))
        return f"wired {amount}{note}"

    async def awire(to: str, amount: int, note: str = "") -> str:
        return wire(to, amount, note)

    return awire if runner.is_async else wire


async def test_a_function_gets_the_authorized_arguments_by_name(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, memory, _wire(effects, runner), gateway)
    await runner.run(graph, {"amount": 5})
    gateway.edit("ap0.0", {"to": "ada", "amount": 2, "note": "!"}, "less")

    end = await runner.resume(graph, gateway)

    assert effects.paid == [(2, "ada")]
    assert end["outcome"].result == "wired 2!"


async def test_arequire_approval_takes_a_plain_function_too(
    memory: InMemorySaver, effects: Effects
) -> None:
    runner = Runner(is_async=True)
    gateway = FakeGateway()
    graph = _graph(runner, memory, _wire(effects, Runner(is_async=False)), gateway)
    await runner.run(graph, {"amount": 5})
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert end["outcome"] == Approved("wired 5", {"amount": 5, "to": "ada"})


async def test_a_function_with_another_signature_is_refused_before_anybody_is_asked(
    runner: Runner, memory: InMemorySaver
) -> None:
    def wire(to: str, total: int) -> str:
        return f"{to}{total}"

    gateway = FakeGateway()
    graph = _graph(runner, memory, wire, gateway)

    with pytest.raises(BadStep, match=r"wire.*not submitted.*'total'"):
        await runner.run(graph, {"amount": 5})

    assert not gateway.turns


async def test_a_coroutine_function_in_a_synchronous_step_is_refused(
    memory: InMemorySaver,
) -> None:
    async def wire(to: str, amount: int) -> str:
        return f"{to}{amount}"

    gateway = FakeGateway()
    runner = Runner(is_async=False)
    graph = _graph(runner, memory, wire, gateway)

    with pytest.raises(BadStep, match="await arequire_approval"):
        await runner.run(graph, {"amount": 5})

    assert not gateway.turns


def test_every_kind_of_function_is_understood() -> None:
    class Wire:
        def __call__(self, *, amount: int) -> int:
            return amount

    def wire(amount: int, to: str) -> str:
        return f"{amount}{to}"

    def takes_all(**given: object) -> object:
        return given

    args: Any = {"amount": 5}

    assert binding_problem(Wire(), args) == ""
    assert binding_problem(functools.partial(wire, to="ada"), args) == ""
    assert binding_problem(takes_all, args) == ""
    assert binding_problem(dict, args) == ""
    assert "missing a required argument: 'to'" in binding_problem(wire, args)
    assert "is not a function" in binding_problem(7, args)  # type: ignore[arg-type] # what a user may write
