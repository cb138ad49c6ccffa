"""Measure the latency from a reviewer's decision to the first line of the tool.

Four ways to the same tool of the same agent, taken in turns on one durable Valkey and
one SQLite checkpointer, each approval in a thread of its own:

- Twokey: an approval as its button gives it, computed before while it waited: one
  script that also queues the job and hands it with the thread's lease to a worker of
  the process, the resume, a claim, the tool.
- a bare resume: LangChain's own middleware, and `Command(resume=...)` called where the
  decision is made, in the same process. This is the lower bound: it has no record of
  the decision, no second process and no claim.
- a poller: the same bare agent, resumed by a loop that reads a status key twice a
  second.
- a bare resume with a durable write before it and one before the tool: what has to
  come first where a decision and a claim are to be kept, and nothing else.
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
from bench.disk import durable_writes_ms
from bench.payments_stub import Graph, PaymentsStub, refund_once
from bench.stats import MEDIAN, P95, Figure, Measured, plain, ratio
from tests.approvals.builders import click_on
from twokey.gateway.approvals.decisions import Approve, Decided
from twokey.gateway.garbage_collection import spare_what_is_there
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.worker import ThreadChange
from twokey.gateway.service.precomputing import GESTURE
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.store import Store

TITLE = "Decision to tool start"
POLL_S = 0.5
ALONE_MS = 6.0
"""What one decision has to reach while nothing else happens."""

WRITES = 2
"""How many durable writes come before the tool: decision and claim."""

_REQUEST = "sha256:" + "a" * 64
"""Digest of Slack's request, which a click always has."""

_TIMEOUT_S = 30.0
_GOLDEN_RATIO = 0.6180339887
"""Its multiples are spread evenly between two polls, for any number of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rounds, and approvals of each subject in a round."""

    rounds: int
    approvals: int


FULL = Plan(rounds=6, approvals=10)
QUICK = Plan(rounds=2, approvals=4)


async def measure(*, is_quick: bool = False) -> Figure:
    """Run all of them in turns and compare them."""
    # As 'twokey run' and 'twokey gateway' do; all are in this process.
    spare_what_is_there()
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Run all of them as often as the plan says."""
    async with subjects() as (stub, found):
        twokey, bare, poller, writing = await in_turns(found, stub, plan)
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.approvals} approvals each; Valkey with "
        "appendfsync always, SQLite checkpoints.",
        (twokey, bare, poller, writing),
        (
            plain(
                "decision to tool p50, alone",
                twokey,
                at_most=ALONE_MS,
                limit=_floor(bare, writing),
            ),
            # Without a target of its own: nearly all that Twokey takes is the resume,
            # which comes after the poll as well, and the target above is for that.
            ratio("0.5 s poller / Twokey, p50", poller, twokey),
            ratio("0.5 s poller / Twokey, p95", poller, twokey, share=P95),
            ratio("Twokey / bare resume, p50", twokey, bare),
            ratio("Twokey / bare resume, p95", twokey, bare, share=P95),
            ratio(f"Twokey / {writing.name}, p50", twokey, writing),
        ),
    )


def _floor(bare: Measured, writing: Measured) -> str:
    """Return in words what no work of ours can go below."""
    disk_ms = durable_writes_ms(WRITES)
    floor_ms = bare.at(MEDIAN) + disk_ms
    return (
        f"a bare resume in this run ({bare.at(MEDIAN):.1f} ms) and {WRITES} durable "
        f"writes one after the other (decision, the claim: {disk_ms:.1f} ms)"
        f" take {floor_ms:.1f} ms; a program that does just that, with the store in "
        f"another process, takes {writing.at(MEDIAN):.1f} ms"
    )


class Subject(Protocol):
    """One way from a decision to the tool."""

    name: str

    async def propose(self, order: str) -> None:
        """Let an agent request this order in a thread of its own, until it waits."""
        ...

    async def decide(self, order: str) -> float:
        """Approve it; return when that began. The tool may begin before or after."""
        ...

    async def wait_until_idle(self, order: str) -> None:
        """Wait until the agent's run has ended."""
        ...


class Twokey:
    """The whole product but Slack: decide, job and lease, worker, resume, claim."""

    name = "Twokey"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reviews = ReviewService(store, lambda: POLICY)
        self._idle: dict[str, asyncio.Event] = {}

    def on_change(self, change: ThreadChange) -> None:
        """Set the event of a thread that is idle."""
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
    return [one.id for one in await store.approvals.of_run(keys, "default", run)]


async def approve(store: Store, reviews: ReviewService, run: RunRef) -> float:
    """Approve the one call of a run as its button does; return when that began."""
    [asked] = await asked_in(store, run)
    # The publisher of the same process reads each record to draw its card, and
    # precomputes its approval while nobody clicks.
    loaded = await reviews.read_as_of_now(asked)
    assert loaded is not None, asked
    reviews.as_shown.precompute(asked)
    click = click_on(loaded.approval).with_(request_digest=_REQUEST)
    pressed = ANA.with_(gesture=GESTURE)
    began = time.perf_counter()
    if not await reviews.as_shown.approve(click, pressed):
        outcome = await reviews.decide(click, Approve(), pressed)
        assert isinstance(outcome, Decided), outcome
    return began


class Bare:
    """LangChain's own middleware, resumed in the call that decides."""

    name = "bare resume"

    def __init__(self, graph: Graph) -> None:
        # What is used of a graph; its own types are partial.
        self._graph = cast("Any", graph)
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
        answer: Command[Any] = Command(resume={self._asked[order]: {"type": "approve"}})
        await self._graph.ainvoke(answer, config_of(order))
        return began

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`; deciding has already run it to its end."""


class Writing:
    """The bare agent, with a durable write before its resume and before its tool."""

    name = "bare resume with 2 durable writes"

    def __init__(self, bare: Bare, store: Store) -> None:
        self._bare = bare
        self._conn = store.conn

    async def propose(self, order: str) -> None:
        """See `Subject.propose`."""
        await self._bare.propose(order)

    async def decide(self, order: str) -> float:
        """See `Subject.decide`."""
        began = time.perf_counter()
        await self._conn.command("SET", _status(order), "approve", "PX", 60_000)
        await self._bare.decide(order)
        return began

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`; deciding has already run it to its end."""


class _WritingStub(PaymentsStub):
    """Its tool makes a durable write before it starts."""

    def __init__(self, inner: PaymentsStub, store: Store) -> None:
        super().__init__()
        self._inner = inner
        self._conn = store.conn

    @override
    async def refund(self, order: str, amount: float) -> str:
        """Give money back."""
        await self._conn.command("SET", _status(order), "claimed", "PX", 60_000)
        return await self._inner.refund(order, amount)


class Poller:
    """The bare agent, resumed by a loop that reads a status key now and then."""

    name = "0.5 s poller"

    def __init__(self, bare: Bare, store: Store) -> None:
        self._bare = bare
        self._conn = store.conn
        self._decided = 0

    async def propose(self, order: str) -> None:
        """See `Subject.propose`."""
        await self._bare.propose(order)

    async def decide(self, order: str) -> float:
        """See `Subject.decide`; decisions fall evenly between two polls."""
        polling = asyncio.create_task(self._poll(order))
        self._decided += 1
        await asyncio.sleep(POLL_S * (self._decided * _GOLDEN_RATIO % 1))
        began = time.perf_counter()
        await self._conn.command("SET", _status(order), "approve", "PX", 60_000)
        await polling
        return began

    async def wait_until_idle(self, order: str) -> None:
        """See `Subject.wait_until_idle`; the poller has already run it to its end."""

    async def _poll(self, order: str) -> None:
        while await self._conn.command("GET", _status(order)) is None:  # noqa: ASYNC110 - polling is what it stands for
            await asyncio.sleep(POLL_S)
        await self._bare.decide(order)


@asynccontextmanager
async def subjects() -> AsyncGenerator[tuple[PaymentsStub, list[Subject]]]:
    """Start everything, with a worker that waits for jobs throughout."""
    stub = PaymentsStub()
    async with both_agents(stub, refund_once, Twokey) as (twokey, store, graph):
        bare = Bare(graph)
        writing = ungated(_WritingStub(stub, store), refund_once)
        saver = cast("Any", graph).checkpointer
        yield (
            stub,
            [
                twokey,
                bare,
                Poller(bare, store),
                Writing(Bare(attached(writing, saver)), store),
            ],
        )


async def in_turns(
    subjects: Sequence[Subject], stub: PaymentsStub, plan: Plan
) -> list[Measured]:
    """Let the subjects take turns as often as the plan says; return what each took."""
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
    """Let the subjects take turns; return what each took, in their order."""
    taken: list[list[float]] = [[] for _ in subjects]
    for number in range(approvals):
        for row, subject in zip(taken, subjects, strict=True):
            order = f"{subject.name} {turn}.{number}"
            row.append(await _once(subject, stub, order))
    return [tuple(row) for row in taken]


async def _once(subject: Subject, stub: PaymentsStub, order: str) -> float:
    """Return how long one approval took from decision to tool start, in ms."""
    async with asyncio.timeout(_TIMEOUT_S):
        await subject.propose(order)
        begun = stub.expect(order)
        decided = await subject.decide(order)
        taken = await begun - decided
        await subject.wait_until_idle(order)
    return taken * 1000


def _status(order: str) -> str:
    return f"bench:status:{order}"
