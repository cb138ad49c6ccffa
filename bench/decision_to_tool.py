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
from dataclasses import dataclass
from typing import Any, Protocol, cast

from langchain_core.messages import HumanMessage
from langgraph.types import Command
from typing_extensions import override

from bench.both_agents import (
    AGENT,
    ANA,
    DAN,
    POLICY,
    both_agents,
    config_of,
    run_of,
    ungated,
)
from bench.payments_stub import Graph, PaymentsStub, refund_once
from bench.stats import P95, Figure, Measured, ratio
from keyturn.gateway.approvals.decisions import Approve, Decided, Gesture
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.thread_state import ThreadChange
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store
from tests.approvals.builders import click_on

TITLE = "Decision to tool start"
_REQUEST = "sha256:" + "a" * 64
"""Digest of Slack's request, which every click has."""

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: rounds, and approvals of each subject in a round."""

    rounds: int
    approvals: int


FULL = Plan(rounds=6, approvals=10)
QUICK = Plan(rounds=2, approvals=4)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run both alternately and compare them."""
    # Like 'keyturn run' and 'keyturn gateway'; all parts are in this process.
    spare_what_is_there()
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run both according to the plan."""
    async with subjects() as (stub, found):
        keyturn, writing = await in_turns(found, stub, plan)
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.approvals} approvals each; Valkey with "
        "appendfsync always, SQLite checkpoints.",
        (keyturn, writing),
        (
            ratio(
                "decision to tool: Keyturn / bare resume with 2 writes, p50",
                keyturn,
                writing,
                at_most=2.2,
            ),
            ratio("the same, p95", keyturn, writing, share=P95),
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
        return await approve(self._store, self._reviews, run_of(order))

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`."""
        await self._idle[order].wait()
        self._idle[order].clear()


async def asked_in(store: Store, run: RunRef) -> list[str]:
    """Return the approvals of a run."""
    keys = store.keys_of_tenant("default")
    return [one.id for one in await store.approvals.of_run(keys, run)]


async def approve(store: Store, reviews: ReviewService, run: RunRef) -> float:
    """Approve the one call of a run like its button does; return the start time."""
    [asked] = await asked_in(store, run)
    loaded = await reviews.read_as_of_now(asked)
    assert loaded is not None, asked
    click = click_on(loaded.approval).with_(request_digest=_REQUEST)
    pressed = ANA.with_(gesture=Gesture.BUTTON)
    began = time.perf_counter()
    outcome = await reviews.decide(click, Approve(), pressed)
    assert isinstance(outcome, Decided), outcome
    return began


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


async def in_turns(
    subjects: Sequence[Subject], stub: PaymentsStub, plan: Plan
) -> list[Measured]:
    """Run the subjects alternately according to the plan; return their times."""
    for subject in subjects:
        await _once(subject, stub, f"{subject.name} warms up")
    rounds = [
        await _round(subjects, stub, plan.approvals, turn)
        for turn in range(plan.rounds)
    ]
    return [
        Measured(one.name, "ms", tuple(row[place] for row in rounds))
        for place, one in enumerate(subjects)
    ]


async def _round(
    subjects: Sequence[Subject], stub: PaymentsStub, approvals: int, turn: int
) -> list[tuple[float, ...]]:
    """Run the subjects alternately; return the times of each, in their order."""
    taken: list[list[float]] = [[] for _ in subjects]
    for number in range(approvals):
        for row, subject in zip(taken, subjects, strict=True):
            order = f"{subject.name} {turn}.{number}"
            row.append(await _once(subject, stub, order))
    return [tuple(row) for row in taken]


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
