"""Run one agent behind Keyturn and behind LangChain's middleware.

Both store their threads in one SQLite file. Keyturn has a durable Valkey, one reviewer
who may decide everything, and a worker that always waits for jobs. LangChain's
middleware is resumed in this process, which writes no record and no claim.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableConfig

from bench import SECRETS
from bench.payments_stub import Graph, PaymentsStub, Reply, agent
from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Person, RunRef
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner, Runners
from keyturn.gateway.resume.thread_state import ThreadChange
from keyturn.gateway.running import running
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.store import Store

AGENT = "support"
RULES = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0BENCH, needs: [U0ANA]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000, flood_per_10m: 100000}
tools:
  refund: {tier: approve}
"""
POLICY = load_policy(RULES, "bench.yml")
DAN = Person(team="T0", user="U0DAN", name="Dan")
ANA = Reviewer(team="T0", user="U0ANA", name="Ana", account=AccountKind.MEMBER)


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
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        data_dir = Path(folder)
        async with (
            open_store(None, data_dir, secrets=SECRETS) as store,
            open_checkpoints(str(data_dir / "checkpoints.db")) as saver,
        ):
            gated = agent(stub, ApprovalMiddleware(AGENT), guarded, reply)
            bare = ungated(stub, reply)
            ours = make(store)
            runners = Runners({AGENT: Runner(attached(gated, saver))}, saver)
            async with running(
                store, lambda: POLICY, runners, on_change=ours.on_change
            ):
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
