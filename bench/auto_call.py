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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from bench.payments_stub import Graph
from bench.stats import Figure, NotMeasured, result
from bench.world import durable_store, in_turns
from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import ScriptedModel, calling
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.http_api import connected
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.service.run.agents import AgentService

_POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, channel: C0BENCH, needs: [U0ANA]}
tools:
  look_up: {tier: auto}
""",
    "bench.yml",
)


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


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both agents alternately and compare them."""
    rounds, runs, calls = (2, 2, 3) if is_quick else (8, 10, 10)
    async with (
        durable_store() as (store, folder),
        open_checkpoints(str(folder / "checkpoints.db")) as saver,
    ):

        def agent(middleware: object) -> Callable[[str], Awaitable[float]]:
            make = cast("Callable[..., Graph]", create_agent)
            graph = make(_model(calls), tools=[look_up], middleware=[middleware])
            # Only the used part of a graph; LangGraph's types are partial.
            return partial(_run, cast("Any", attached(graph, saver)), calls)

        ways = {
            "LangChain": agent(HumanInTheLoopMiddleware({"refund": True})),
            "Keyturn": agent(ApprovalMiddleware("support")),
        }
        with connected(AgentService(store, lambda: _POLICY)):
            langchain, keyturn = await in_turns(ways, rounds, runs)
    return Figure(
        "An auto-approved call",
        f"{rounds} rounds of {runs} runs with {calls} calls each, one "
        "call a turn, a model that takes no time;\n"
        "Valkey with appendfsync always, SQLite checkpoints. Times are of one call.",
        (langchain, keyturn),
        (
            result(
                "auto call: Keyturn / LangChain, p50", keyturn, langchain, at_most=1.15
            ),
        ),
    )


async def _run(graph: Any, calls: int, thread: str) -> float:  # noqa: ANN401 - see above
    """Run an agent once; return the time of one call, in ms."""
    given = {"messages": [HumanMessage(thread)]}
    began = time.perf_counter()
    state = await graph.ainvoke(given, {"configurable": {"thread_id": thread}})
    taken = time.perf_counter() - began
    results = [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
    if results != [f"{thread} is a desk"] * calls:
        raise NotMeasured(f"{thread} made other calls: {results!r}.")
    return taken * 1000 / calls
