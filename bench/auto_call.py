"""Measure the overhead of a gated call that policy allows without a person.

Five agents that differ in their middleware alone make the same calls, in turns, each
run in a thread of its own, on one SQLite checkpointer:

- bare: no middleware.
- LangChain: its own `HumanInTheLoopMiddleware`, which does not list the tool.
- Twokey: `ApprovalMiddleware`, with a policy of tier ``auto``. Every turn is evaluated
  and stored in a durable Valkey, with an audit entry, before its tool runs.
- Twokey, weighed: the same, with a rule over a counting window for each call.
- one write: hooks in the places of Twokey's that do nothing but one durable write a
  turn. LangGraph makes a step with a checkpoint of a hook before the agent, so nothing
  that keeps what Twokey keeps is faster.

The model takes no time, so this is the worst case for a ratio: a real model takes
about a second a turn, beside which all of these are negligible.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NotRequired, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.middleware.types import (
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
    ToolCallRequest,
)
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.runtime import Runtime
from langgraph.types import Command

from bench.disk import waits_for_the_disk
from bench.payments_stub import Graph
from bench.stats import Figure, Measured, NotMeasured, ratio, short
from bench.store_secrets import SECRETS
from twokey.agent import ApprovalMiddleware
from twokey.agent.scripted_model import ScriptedModel, calling
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.port import connected
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store

TITLE = "A call that needs nobody"

_POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, channel: C0BENCH, reviewers: [U0ANA]}
windows:
  looked_up: {tools: [weigh], by: args.order, count: true, within: 1h}
tools:
  look_up: {tier: auto}
  weigh:
    tier: auto
    raise:
      - {to: approve, when: windows.looked_up > 100000, because: too often}
""",
    "bench.yml",
)


_TURN_BYTES = 512
"""About what Twokey keeps of a turn with one call, its events included."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rounds, runs of each agent in a round, calls in a run."""

    rounds: int
    runs: int
    calls: int


FULL = Plan(rounds=8, runs=10, calls=10)
QUICK = Plan(rounds=2, runs=2, calls=3)


@tool
def look_up(order: str) -> str:
    """Look up an order."""
    return f"{order} is a desk"


@tool
def weigh(order: str) -> str:
    """Look up an order, by a tool that the policy has a rule for."""
    return f"{order} is a desk"


def _model(calls: int, uses: str) -> ScriptedModel:
    """Return a model that looks an order up so many times, one call a turn."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if done >= calls:
            return AIMessage("Done.")
        order = next(str(m.text) for m in messages if isinstance(m, HumanMessage))
        return calling((uses, {"order": order}, f"call-{done}"))

    return ScriptedModel(reply=reply)


class _Noted(AgentState[Any]):
    """The state of an agent, with something that is kept of its latest turn."""

    bench_turn: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]


class OneWrite(ApprovalMiddleware):
    """The very hooks of `ApprovalMiddleware`, each of which does as little as it can.

    It is derived from it, so that LangChain calls them in the same way.
    """

    state_schema = _Noted  # type: ignore[assignment]  # it keeps less than the middleware

    def __init__(self, store: Store) -> None:
        super().__init__("support")
        self._store = store

    async def abefore_agent(
        self, state: AgentState[Any], runtime: Runtime[Any]
    ) -> None:
        """Do nothing, as a step of the graph."""

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model; write a turn with calls durably."""
        answer = await handler(request)
        message = answer.result[-1]
        if not isinstance(message, AIMessage) or not message.tool_calls:
            return answer
        await self._store.conn.command("SET", "bench:turn", "x" * _TURN_BYTES)
        kept: Command[Any] = Command(update={"bench_turn": {"message_id": message.id}})
        return ExtendedModelResponse(model_response=answer, command=kept)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Call the tool."""
        return await handler(request)


@dataclass(frozen=True, slots=True)
class Subject:
    """One agent."""

    name: str
    graph: Graph

    async def run(self, thread: str, calls: int) -> float:
        """Run it once; return how long one call took, in ms.

        Raises:
            NotMeasured: when not every call was made.
        """
        given = {"messages": [HumanMessage(thread)]}
        began = time.perf_counter()
        # What is used of a graph; its own types are partial.
        state = await cast("Any", self.graph).ainvoke(
            given, {"configurable": {"thread_id": thread}}
        )
        taken = time.perf_counter() - began
        results = [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
        if results != [f"{thread} is a desk"] * calls:
            raise NotMeasured(f"{self.name} made other calls: {results!r}.")
        return taken * 1000 / calls


async def measure(*, is_quick: bool = False) -> Figure:
    """Run all agents in turns and compare them."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run all agents as often as the plan says."""
    async with _subjects(plan.calls) as subjects:
        for subject in subjects:
            await subject.run(f"{subject.name} warms up", plan.calls)
        rounds = [await _round(subjects, plan, turn) for turn in range(plan.rounds)]
    bare, langchain, twokey, weighed, least = (
        Measured(one.name, "ms", tuple(row[place] for row in rounds))
        for place, one in enumerate(subjects)
    )
    floor = ratio("one durable write / LangChain, p50", least, langchain)
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.runs} runs with {plan.calls} calls each, one "
        "call a turn, a model that takes no time;\n"
        "Valkey with appendfsync always, SQLite checkpoints. Times are of one call.",
        (bare, langchain, twokey, weighed, least),
        (
            ratio("Twokey / bare, p50", twokey, bare),
            ratio(
                "auto call: Twokey / LangChain, p50",
                twokey,
                langchain,
                at_most=1.1,
                limit=(
                    "the same hooks with nothing but one durable write: "
                    f"{short(floor.value)}; "
                    + waits_for_the_disk("turn with its verdicts and audit entry", 1)
                ),
            ),
            ratio("Twokey weighed / LangChain, p50", weighed, langchain),
            floor,
            ratio("LangChain / bare, p50", langchain, bare),
        ),
    )


async def _round(
    subjects: Sequence[Subject], plan: Plan, turn: int
) -> list[tuple[float, ...]]:
    """Let the subjects take turns; return what each took, in their order."""
    taken: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(plan.runs):
        # In turns: the first one measured pays for cold caches.
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

            def subject(name: str, *middleware: object, uses: str) -> Subject:
                model = _model(calls, uses)
                graph = make(model, tools=[look_up, weigh], middleware=middleware)
                return Subject(name, attached(graph, saver))

            gateway = AgentService(store, lambda: _POLICY)
            theirs = HumanInTheLoopMiddleware({"refund": True})
            ours = ApprovalMiddleware("support")
            with connected(gateway):
                yield [
                    subject("bare", uses="look_up"),
                    subject("LangChain", theirs, uses="look_up"),
                    subject("Twokey", ours, uses="look_up"),
                    subject("Twokey, weighed", ours, uses="weigh"),
                    subject("one write", OneWrite(store), uses="look_up"),
                ]
