"""Measure how long the calls of one turn take from their decisions to their end.

An agent asks for 56 refunds in one message: one approval, one thread. The same calls
are settled in two ways:

- one by one: a person decides one call after the other, as soon as the one before is
  recorded. Their tools start meanwhile.
- as one batch: one gesture approves all of them.

Both end when the agent's run is over. Beside each stands the same graph with
LangChain's own middleware, resumed in this process, which writes no record, no claim
and no result. LangGraph runs all calls of a turn that still wait again whenever one is
answered: so one by one it takes long there, too, and answers given together are the
way out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.types import Command

from bench.payments_stub import Graph, PaymentsStub
from bench.stats import Figure, Measured, NotMeasured, plain, ratio
from twokey.agent import ApprovalMiddleware, guarded
from twokey.agent.scripted_model import ScriptedModel, calling
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    BatchDecided,
    Click,
    Decided,
    Decision,
    Reviewer,
)
from twokey.gateway.approvals.record import Approval
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Person, RunRef
from twokey.gateway.resume.checkpoints import open_checkpoints
from twokey.gateway.resume.graphs import attached
from twokey.gateway.resume.langgraph_local import LangGraphLocal
from twokey.gateway.resume.worker import ThreadChange
from twokey.gateway.running import running
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store
from twokey.gateway.store.turn_opening import Listed

TITLE = "Many calls of one turn"
ONE_BY_ONE_S, AT_ONCE_S = 3.0, 0.5
"""What must be reached with 56 calls."""

_AGENT = "support"
_POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0BENCH, reviewers: [U0ANA]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000}
tools:
  refund: {tier: approve}
""",
    "bench.yml",
)
_DAN = Person(team="T0", user="U0DAN", name="Dan")
_ANA = Reviewer(team="T0", user="U0ANA", name="Ana", account=AccountKind.MEMBER)
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rounds, and calls of one turn."""

    rounds: int
    calls: int


FULL = Plan(rounds=3, calls=56)
QUICK = Plan(rounds=1, calls=4)


async def measure(*, is_quick: bool = False) -> Figure:
    """Settle the calls of a turn one by one, then at once."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Do so as often as the plan says."""
    stub = PaymentsStub()
    async with _both(stub, plan.calls) as (ours, bare):
        ways = (
            ("one by one", ours.one_by_one),
            ("as one batch", ours.at_once),
            ("LangChain, one by one", bare.one_by_one),
            ("LangChain, at once", bare.at_once),
        )
        # The first turn pays for what is made once a process.
        for name, settle in ways[1::2]:
            await _timed(settle, f"{name} warms up")
        taken: dict[str, list[float]] = {name: [] for name, _ in ways}
        for turn in range(plan.rounds):
            for name, settle in ways:
                taken[name].append(await _timed(settle, f"{name} {turn}"))
    n = plan.calls
    singly, at_once, bare_singly, bare_at_once = (
        Measured(name, "s", tuple((one,) for one in row)) for name, row in taken.items()
    )
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {n} calls, decided in one thread; Valkey with "
        "appendfsync always, SQLite checkpoints.",
        (singly, at_once, bare_singly, bare_at_once),
        (
            plain(
                f"{n} calls one by one",
                singly,
                at_most=ONE_BY_ONE_S,
                limit=f"LangChain, which records nothing: {bare_singly.at(0.5):.2f} s",
            ),
            plain(
                f"{n} calls as one batch",
                at_once,
                at_most=AT_ONCE_S,
                limit=f"LangChain, which records nothing: {bare_at_once.at(0.5):.2f} s",
            ),
            ratio("one by one: Twokey / LangChain", singly, bare_singly),
            ratio("one batch: Twokey / LangChain", at_once, bare_at_once),
        ),
    )


async def _timed(settle: Callable[[str], Any], thread: str) -> float:
    async with asyncio.timeout(_TIMEOUT_S):
        return float(await settle(thread))


class Ours:
    """The whole product but Slack."""

    def __init__(self, store: Store, stub: PaymentsStub, calls: int) -> None:
        self._store = store
        self._stub = stub
        self._calls = calls
        self._reviews = ReviewService(store, lambda: _POLICY)
        self._changes: asyncio.Queue[ThreadChange] = asyncio.Queue()

    def on_change(self, change: ThreadChange) -> None:
        """Keep what a worker did."""
        self._changes.put_nowait(change)

    async def one_by_one(self, thread: str) -> float:
        """Decide one call after the other; return the seconds until the run ended."""
        approval = await self._asked(thread)
        began = time.perf_counter()
        for item in approval.items:
            click = Click(
                approval=approval.id,
                index=item.index,
                version=approval.version,
                action_hash=item.action_hash,
            )
            outcome = await self._reviews.decide(click, Approve(), _ANA)
            if not isinstance(outcome, Decided):
                raise NotMeasured(f"A call was not decided: {outcome!r}.")
        return await self._ended(approval, began)

    async def at_once(self, thread: str) -> float:
        """Approve all calls by one gesture; return the seconds until the run ended."""
        approval = await self._asked(thread)
        click = Click(
            approval=approval.id,
            index=0,
            version=approval.version,
            action_hash=approval.digest,
        )
        began = time.perf_counter()
        partition: dict[int, Decision | None] = {
            item.index: Approve() for item in approval.items
        }
        outcome = await self._reviews.decide_batch(click, partition, _ANA)
        if not isinstance(outcome, BatchDecided):
            raise NotMeasured(f"The batch was not decided: {outcome!r}.")
        return await self._ended(approval, began)

    async def _asked(self, thread: str) -> Approval:
        """Let the agent ask, and return its approval."""
        for n in range(self._calls):
            self._stub.expect(f"{thread}-{n}")
        await self._reviews.ask_agent(
            _AGENT, thread, thread, requester=_DAN, origin=None
        )
        keys, run_ref = self._store.keys_of_tenant("default"), _run(thread)
        listed: list[Listed] = []
        while not listed:
            change = await self._changes.get()
            if change.error is not None:
                raise NotMeasured(f"The agent did not ask: {change.error!r}.")
            listed = await self._store.approvals.of_run(keys, "default", run_ref)
        if len(listed) != 1:
            raise NotMeasured(f"The turn has {len(listed)} approvals.")
        loaded = await self._reviews.read(listed[0].id)
        assert loaded is not None, listed
        return loaded.approval

    async def _ended(self, approval: Approval, began: float) -> float:
        """Return the seconds until nothing of the run is left to do."""
        keys, run_ref = self._store.keys_of_tenant("default"), _run(approval.thread)
        while await self._store.approvals.has_open(keys, "default", run_ref):
            change = await self._changes.get()
            if change.error is not None:
                raise NotMeasured(f"The run was given up: {change.error!r}.")
        return time.perf_counter() - began


class Bare:
    """The same graph with LangChain's own middleware, resumed where it is decided."""

    def __init__(self, graph: Graph, stub: PaymentsStub, calls: int) -> None:
        # What is used of a graph; its own types are partial.
        self._graph = cast("Any", graph)
        self._stub = stub
        self._calls = calls

    async def one_by_one(self, thread: str) -> float:
        """Resume with one answer after the other; return the seconds."""
        asked = await self._asked(thread)
        began = time.perf_counter()
        for one in asked:
            await self._resumed(thread, [one])
        return time.perf_counter() - began

    async def at_once(self, thread: str) -> float:
        """Resume with all answers; return the seconds."""
        asked = await self._asked(thread)
        began = time.perf_counter()
        await self._resumed(thread, asked)
        return time.perf_counter() - began

    async def _resumed(self, thread: str, ids: Sequence[str]) -> None:
        answer: Command[Any] = Command(resume={one: {"type": "approve"} for one in ids})
        await self._graph.ainvoke(answer, _config(thread))

    async def _asked(self, thread: str) -> list[str]:
        for n in range(self._calls):
            self._stub.expect(f"{thread}-{n}")
        given = {"messages": [HumanMessage(thread)]}
        stopped = await self._graph.ainvoke(given, _config(thread))
        asked = [one.id for one in stopped["__interrupt__"]]
        if len(asked) != self._calls:
            raise NotMeasured(f"LangChain asked {len(asked)} times.")
        return asked


def _agent(
    stub: PaymentsStub,
    calls: int,
    middleware: ApprovalMiddleware | HumanInTheLoopMiddleware[Any, Any, Any],
    wrap: Callable[[BaseTool], BaseTool],
) -> Graph:
    """Return an agent that asks for all its refunds in one message."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if not isinstance(last, HumanMessage):
            return AIMessage("Done.")
        thread = str(last.text)
        return calling(
            *(
                ("refund", {"order": f"{thread}-{n}", "amount": n + 0.5}, f"call-{n}")
                for n in range(calls)
            )
        )

    make = cast("Callable[..., Graph]", create_agent)
    return make(
        ScriptedModel(reply=reply), tools=[wrap(stub.tool())], middleware=[middleware]
    )


@asynccontextmanager
async def _both(stub: PaymentsStub, calls: int) -> AsyncGenerator[tuple[Ours, Bare]]:
    """Start everything, with a worker that waits for jobs throughout."""
    with TemporaryDirectory(prefix="tk-bench-") as folder:
        data_dir = Path(folder)
        async with (
            open_store(None, data_dir) as store,
            open_checkpoints(str(data_dir / "checkpoints.db")) as saver,
        ):
            theirs = HumanInTheLoopMiddleware(
                {"refund": True}, interrupt_mode="per_call"
            )
            bare = Bare(
                attached(_agent(stub, calls, theirs, lambda tool: tool), saver),
                stub,
                calls,
            )
            ours = Ours(store, stub, calls)
            gated = _agent(stub, calls, ApprovalMiddleware(_AGENT), guarded)
            runners = {_AGENT: LangGraphLocal(attached(gated, saver))}
            async with running(
                store, lambda: _POLICY, runners, on_change=ours.on_change
            ):
                yield ours, bare


def _run(thread: str) -> RunRef:
    return RunRef(agent=_AGENT, thread=thread)


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}
