"""Run one agent behind Keyturn and behind LangChain's middleware.

Both store their threads in one SQLite file. Keyturn has a durable Valkey, one reviewer
who may decide everything, and a worker that always waits for jobs. LangChain's
middleware is resumed in this process, which writes no record and no claim.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableConfig

from bench.payments_stub import Graph, PaymentsStub, Reply, agent
from bench.world import AGENT, POLICY, durable_store
from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.embed import running
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.resume.threads import ThreadChange
from keyturn.gateway.store.store import Store


class Measurement(Protocol):
    """The part of a measurement with Keyturn, notified of the worker's changes."""

    def on_change(self, change: ThreadChange) -> None:
        """Handle a finished job."""
        ...


MeasurementT = TypeVar("MeasurementT", bound=Measurement)


@asynccontextmanager
async def both_agents(
    stub: PaymentsStub, reply: Reply, make: Callable[[Store], MeasurementT]
) -> AsyncGenerator[tuple[MeasurementT, Store, Graph]]:
    """Start both agents.

    Args:
        stub: the backend of both agents' tool.
        reply: the model of both agents.
        make: returns the measurement with Keyturn, given its store.

    Yields:
        The measurement, the store, and LangChain's graph.
    """
    async with (
        durable_store() as (store, folder),
        open_checkpoints(str(folder / "checkpoints.db")) as saver,
    ):
        gated = agent(stub, ApprovalMiddleware(AGENT), guarded, reply)
        bare = ungated(stub, reply)
        ours = make(store)
        runners = Runners({AGENT: Runner(attached(gated, saver))}, saver)
        async with running(store, lambda: POLICY, runners, on_change=ours.on_change):
            yield ours, store, attached(bare, saver)


def ungated(stub: PaymentsStub, reply: Reply) -> Graph:
    """Return the agent behind LangChain's middleware, without a checkpointer."""
    theirs = HumanInTheLoopMiddleware({"refund": True}, interrupt_mode="per_call")
    return agent(stub, theirs, lambda tool: tool, reply)


def run_of(thread: str) -> RunRef:
    """Return the run of the agent in a thread."""
    return RunRef(agent=AGENT, thread=thread)


def config_of(thread: str) -> RunnableConfig:
    """Return the config of a thread of LangChain's agent."""
    return {"configurable": {"thread_id": thread}}
