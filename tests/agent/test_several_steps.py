"""Several steps of one node or entrypoint are each asked about once, and run once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy
from typing_extensions import TypedDict

from keyturn.agent import Approved, Unsure, arequire_approval, connected
from keyturn.gateway.protocol.records import ItemState
from tests.agent.agent_runner import CONFIG, Runner
from tests.agent.fake_gateway import FakeGateway

FLAKY = 3


class State(TypedDict):
    """What a node did."""

    done: list[str]


Body = Callable[["Ledger", list[int]], Awaitable[list[str]]]


class Ledger:
    """What steps did."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.lines.append(f"paid {amount}")
        return f"did {amount}"


async def step(ledger: Ledger, amount: int, **options: Any) -> str:
    """Ask for one payment."""
    outcome = await arequire_approval(
        "pay", {"amount": amount}, run=ledger.pay, agent="bank", **options
    )
    return outcome.result if isinstance(outcome, Approved) else outcome.message


async def in_turn(ledger: Ledger, amounts: list[int]) -> list[str]:
    """Ask one after the other."""
    return [await step(ledger, amount) for amount in amounts]


async def by_key(ledger: Ledger, amounts: list[int]) -> list[str]:
    """Ask twice in sequence, with a different name each time."""
    return [await step(ledger, a, key=f"n{n}") for n, a in enumerate(amounts)]


@pytest.mark.parametrize("body", [in_turn, by_key])
@pytest.mark.parametrize("amounts", [[1, 2, 3], [5, 5, 5]])
async def test_steps_of_one_body_are_told_apart(body: Body, amounts: list[int]) -> None:
    gateway, ledger = FakeGateway(), Ledger()

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: list[int]) -> list[str]:
        return await body(ledger, given)

    end = await played(flow, amounts, gateway)

    assert end == [f"did {amount}" for amount in amounts]
    assert ledger.lines == [f"paid {amount}" for amount in amounts]
    assert [one.state for one in gateway.items.values()] == [ItemState.EXECUTED] * 3


@pytest.mark.slow
async def test_an_attempt_by_a_retry_policy_repeats_no_step() -> None:
    gateway, ledger, attempts = FakeGateway(), Ledger(), list[int]()

    async def node(state: State) -> dict[str, list[str]]:
        done = await in_turn(ledger, [1, 2])
        attempts.append(len(done))
        if len(attempts) < FLAKY:
            raise ConnectionError("flaky")
        return {"done": done}

    builder: Any = StateGraph(State)
    policy = RetryPolicy(max_attempts=FLAKY, initial_interval=0.01)
    builder.add_node("node", node, retry_policy=policy)
    builder.add_edge(START, "node")

    end = await played(
        builder.compile(checkpointer=InMemorySaver()), {"done": []}, gateway
    )

    assert end == {"done": ["did 1", "did 2"]}
    assert ledger.lines == ["paid 1", "paid 2"]
    assert len(attempts) == FLAKY


async def test_a_step_that_failed_tells_its_error_when_the_body_runs_again() -> None:
    gateway, told = FakeGateway(), list[str]()

    async def hang_up(amount: int) -> str:
        raise ValueError(f"the bank hung up at {amount}")

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: list[int]) -> list[str]:
        for amount in given:
            outcome = await arequire_approval(
                "pay", {"amount": amount}, run=hang_up, agent="bank"
            )
            assert isinstance(outcome, Unsure)
            told.append(outcome.message)
        return told[-2:]

    end = cast("list[str]", await played(flow, [1, 2], gateway))

    assert "the bank hung up at 1" in end[0]
    assert "the bank hung up at 2" in end[1]
    assert {text for text in told if "at 1" in text} == {end[0]}


async def played(graph: Any, given: object, gateway: FakeGateway) -> object:
    """Run a graph and approve all its requests until it ends."""
    with connected(gateway):
        end = await graph.ainvoke(given, CONFIG)
        while pending := gateway.pending():
            for item in pending:
                gateway.approve(item.id)
            end = await Runner(is_async=True).resume(graph, gateway)
    return cast("object", end)
