"""Measure the overhead of a gated call that policy allows without a person.

Two agents that differ only in their middleware make the same calls alternately, each
run in a separate thread, on one SQLite checkpointer:

- LangChain: its `HumanInTheLoopMiddleware`, which does not list the tool.
- Keyturn: `ApprovalMiddleware`, with a policy of tier ``auto``. Every turn is evaluated
  and stored in a durable Valkey, with an audit entry, before its tool runs.

The model takes no time, so this is the worst case: a real model takes about a second a
turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from bench import SECRETS
from bench.payments_stub import Graph
from bench.stats import Figure, Measured, NotMeasured, ratio
from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import ScriptedModel, calling
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.port import connected
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.open_store import open_store

TITLE = "An auto-approved call"

_POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, channel: C0BENCH, needs: [U0ANA]}
tools:
  look_up: {tier: auto}
""",
    "bench.yml",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: rounds, runs of each agent in a round, calls in a run."""

    rounds: int
    runs: int
    calls: int


FULL = Plan(rounds=8, runs=10, calls=10)
QUICK = Plan(rounds=2, runs=2, calls=3)


@tool
def look_up(order: str) -> str:
    """Look up an order."""
    return f"{order} is a desk"


def _model(calls: int) -> ScriptedModel:
    """Return a model that looks up an order this many times, one call a turn."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if done >= calls:
            return AIMessage("Done.")
        order = next(str(m.text) for m in messages if isinstance(m, HumanMessage))
        return calling(("look_up", {"order": order}, f"call-{done}"))

    return ScriptedModel(reply=reply)


@dataclass(frozen=True, slots=True)
class Subject:
    """One agent."""

    name: str
    graph: Graph

    async def run(self, thread: str, calls: int) -> float:
        """Run the agent once; return the time of one call, in ms.

        Raises:
            NotMeasured: when not every call was made.
        """
        given = {"messages": [HumanMessage(thread)]}
        began = time.perf_counter()
        # Only the used part of a graph; LangGraph's types are partial.
        state = await cast("Any", self.graph).ainvoke(
            given, {"configurable": {"thread_id": thread}}
        )
        taken = time.perf_counter() - began
        results = [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
        if results != [f"{thread} is a desk"] * calls:
            raise NotMeasured(f"{self.name} made other calls: {results!r}.")
        return taken * 1000 / calls


async def measure(*, is_quick: bool = False) -> Figure:
    """Run all agents alternately and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run all agents according to the plan."""
    async with _subjects(plan.calls) as subjects:
        for subject in subjects:
            await subject.run(f"{subject.name} warms up", plan.calls)
        rounds = [await _round(subjects, plan, turn) for turn in range(plan.rounds)]
    langchain, keyturn = (
        Measured(one.name, "ms", tuple(row[place] for row in rounds))
        for place, one in enumerate(subjects)
    )
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.runs} runs with {plan.calls} calls each, one "
        "call a turn, a model that takes no time;\n"
        "Valkey with appendfsync always, SQLite checkpoints. Times are of one call.",
        (langchain, keyturn),
        (
            ratio(
                "auto call: Keyturn / LangChain, p50", keyturn, langchain, at_most=1.15
            ),
        ),
    )


async def _round(
    subjects: Sequence[Subject], plan: Plan, turn: int
) -> list[tuple[float, ...]]:
    """Run the subjects alternately; return the times of each, in their order."""
    taken: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(plan.runs):
        # In turns: the first subject would pay for cold caches.
        first = number % len(subjects)
        for subject in (*subjects[first:], *subjects[:first]):
            thread = f"{subject.name} {turn}.{number}"
            taken[subject.name].append(await subject.run(thread, plan.calls))
    return [tuple(row) for row in taken.values()]


@asynccontextmanager
async def _subjects(calls: int) -> AsyncGenerator[list[Subject]]:
    """Start the store and make the agents."""
    make = cast("Callable[..., Graph]", create_agent)
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        async with (
            open_store(None, Path(folder), secrets=SECRETS) as store,
            open_checkpoints(str(Path(folder) / "checkpoints.db")) as saver,
        ):

            def subject(name: str, middleware: object) -> Subject:
                model = _model(calls)
                graph = make(model, tools=[look_up], middleware=[middleware])
                return Subject(name, attached(graph, saver))

            with connected(AgentService(store, lambda: _POLICY)):
                yield [
                    subject("LangChain", HumanInTheLoopMiddleware({"refund": True})),
                    subject("Keyturn", ApprovalMiddleware("support")),
                ]
