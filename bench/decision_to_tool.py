"""Measure the latency from a reviewer's decision to the first line of the tool.

Two ways to the same tool of the same agent, taken alternately on one durable Valkey and
one SQLite checkpointer, each approval in a separate thread:

- Keyturn: one script that records the decision and queues a job, the resume, a claim,
  the tool.
- A bare resume with two durable writes: LangChain's middleware, resumed in the deciding
  process, with one write before the resume and one before the tool. This is the minimum
  for any system that stores a decision and a claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, cast

from langchain_core.messages import HumanMessage
from langgraph.types import Command
from typing_extensions import override

from bench.both_agents import both_agents, config_of, run_of, ungated
from bench.payments_stub import Graph, PaymentsStub, refund_once
from bench.stats import P95, Figure, Measured, result
from bench.world import AGENT, DAN, POLICY, TENANT, approve, asked_in, in_turns
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.threads import ThreadChange
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store

_TIMEOUT_S = 30.0


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both alternately and compare them."""
    rounds, approvals = (2, 4) if is_quick else (6, 10)
    # Like 'keyturn run' and 'keyturn gateway'; all parts are in this process.
    spare_what_is_there()
    async with subjects() as (stub, found):
        keyturn, writing = await compared(found, stub, rounds, approvals)
    return Figure(
        "Decision to tool start",
        f"{rounds} rounds of {approvals} approvals each; Valkey with "
        "appendfsync always, SQLite checkpoints.",
        (keyturn, writing),
        (
            result(
                "decision to tool: Keyturn / bare resume with 2 writes, p50",
                keyturn,
                writing,
                at_most=2.2,
            ),
            result("the same, p95", keyturn, writing, share=P95),
        ),
    )


class Subject(Protocol):
    """One way from a decision to the tool."""

    name: str

    async def propose(self, order: str) -> None:
        """Let an agent request this order in a separate thread, until it waits."""
        ...

    async def decide(self, order: str) -> float:
        """Approve the order; return the start time.

        The tool may begin before or after the return.
        """
        ...

    async def wait_until_idle(self, order: str) -> None:
        """Wait until the agent's run has ended."""
        ...


class Keyturn:
    """The whole product without Slack: decide, job and lease, worker, resume, claim."""

    name = "Keyturn"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reviews = ReviewService(store, lambda: POLICY)
        self._idle: dict[str, asyncio.Event] = {}

    def on_change(self, change: ThreadChange) -> None:
        """Set the event of an idle thread."""
        self._idle[change.thread].set()

    async def propose(self, order: str) -> None:
        """See `Subject.propose`."""
        self._idle[order] = asyncio.Event()
        await self._reviews.ask_agent(AGENT, order, order, requester=DAN, origin=None)
        await self.wait_until_idle(order)

    async def decide(self, order: str) -> float:
        """See `Subject.decide`."""
        [asked] = await asked_in(self._store, run_of(order))
        return await approve(self._store, asked)

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`; the worker gives its lease back last."""
        await self._idle[order].wait()
        self._idle[order].clear()
        lease = self._store.keys_of_tenant(TENANT).lease(AGENT, order)
        while await self._store.conn.command("EXISTS", lease):
            pass


class Writing:
    """LangChain's middleware, with a durable write before its resume."""

    name = "bare resume with 2 durable writes"

    def __init__(self, graph: Graph, store: Store) -> None:
        # LangGraph's types of a graph are partial.
        self._graph = cast("Any", graph)
        self._conn = store.conn
        self._asked: dict[str, str] = {}

    async def propose(self, order: str) -> None:
        """See `Subject.propose`."""
        given = {"messages": [HumanMessage(order)]}
        stopped = await self._graph.ainvoke(given, config_of(order))
        [asked] = stopped["__interrupt__"]
        self._asked[order] = asked.id

    async def decide(self, order: str) -> float:
        """See `Subject.decide`."""
        began = time.perf_counter()
        await self._conn.command("SET", _status(order), "approve", "PX", 60_000)
        answer: Command[Any] = Command(resume={self._asked[order]: {"type": "approve"}})
        await self._graph.ainvoke(answer, config_of(order))
        return began

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`; deciding has already run it to its end."""


class _WritingStub(PaymentsStub):
    """A stub whose tool makes a durable write before it starts."""

    def __init__(self, inner: PaymentsStub, store: Store) -> None:
        super().__init__()
        self._inner = inner
        self._conn = store.conn

    @override
    async def refund(self, order: str, amount: float) -> str:
        """Give money back."""
        await self._conn.command("SET", _status(order), "claimed", "PX", 60_000)
        return await self._inner.refund(order, amount)


@asynccontextmanager
async def subjects() -> AsyncGenerator[tuple[PaymentsStub, list[Subject]]]:
    """Start both subjects, with a worker that always waits for jobs."""
    stub = PaymentsStub()
    async with both_agents(stub, refund_once, Keyturn) as (keyturn, store, graph):
        writing = ungated(_WritingStub(stub, store), refund_once)
        saver = cast("Any", graph).checkpointer
        yield stub, [keyturn, Writing(attached(writing, saver), store)]


async def compared(
    found: Sequence[Subject], stub: PaymentsStub, rounds: int, approvals: int
) -> list[Measured]:
    """Measure the subjects alternately."""
    ways = {one.name: partial(_once, one, stub) for one in found}
    return await in_turns(ways, rounds, approvals)


async def _once(subject: Subject, stub: PaymentsStub, order: str) -> float:
    """Return the time of one approval from decision to tool start, in ms."""
    async with asyncio.timeout(_TIMEOUT_S):
        await subject.propose(order)
        begun = stub.expect(order)
        decided = await subject.decide(order)
        taken = await begun - decided
        await subject.wait_until_idle(order)
    return taken * 1000


def _status(order: str) -> str:
    return f"bench:status:{order}"
