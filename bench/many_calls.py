"""Measure the time of one turn's calls from their decisions to their end.

An agent requests 56 refunds in one message: one approval, one thread. The same calls
are settled in two ways:

- one by one: a person decides one call after the other, as soon as the previous
  decision is recorded. The tools start concurrently.
- as one batch: one gesture approves all of them.

Both end when the agent's run is over. Each is compared with the same graph under
LangChain's middleware, resumed in this process, which writes no record, no claim and no
result. LangGraph runs all waiting calls of a turn again whenever one is answered. One
by one is therefore slow there, too, and giving all answers together is faster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.types import Command

from bench.both_agents import (
    AGENT,
    ANA,
    DAN,
    POLICY,
    both_agents,
    config_of,
    run_of,
)
from bench.payments_stub import Graph, PaymentsStub, Reply
from bench.stats import Figure, Measured, NotMeasured, plain, ratio
from keyturn.agent.scripted_model import calling
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Decision,
    GestureDecided,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.resume.thread_state import ThreadChange
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.runs.run_list import Listed
from keyturn.gateway.store.store import Store
from tests.approvals.builders import click_on

TITLE = "Many calls of one turn"
ONE_BY_ONE_S, AT_ONCE_S = 6.0, 0.6
"""The targets with 56 calls."""

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work: rounds, and calls of one turn."""

    rounds: int
    calls: int


FULL = Plan(rounds=3, calls=56)
QUICK = Plan(rounds=1, calls=4)


async def measure(*, is_quick: bool = False) -> Figure:
    """Settle the calls of a turn one by one, then at once."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Settle according to the plan."""
    stub = PaymentsStub()
    async with both_agents(
        stub,
        _refund_all(plan.calls),
        lambda store: WithKeyturn(store, stub, plan.calls),
    ) as (ours, _, graph):
        bare = Bare(graph, stub, plan.calls)
        ways = (
            ("one by one", ours.one_by_one),
            ("as one batch", ours.at_once),
            ("LangChain, one by one", bare.one_by_one),
            ("LangChain, at once", bare.at_once),
        )
        # Like `keyturn gateway`; LangChain's runs are in the same process.
        spare_what_is_there()
        # The first turn pays for the setup of the process.
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
            ratio("one by one: Keyturn / LangChain", singly, bare_singly),
            ratio("one batch: Keyturn / LangChain", at_once, bare_at_once),
        ),
    )


async def _timed(settle: Callable[[str], Any], thread: str) -> float:
    async with asyncio.timeout(_TIMEOUT_S):
        return float(await settle(thread))


class WithKeyturn:
    """The whole product without Slack."""

    def __init__(self, store: Store, stub: PaymentsStub, calls: int) -> None:
        self._store = store
        self._stub = stub
        self._calls = calls
        self._reviews = ReviewService(store, lambda: POLICY)
        self._changes: asyncio.Queue[ThreadChange] = asyncio.Queue()

    def on_change(self, change: ThreadChange) -> None:
        """Record a worker's change."""
        self._changes.put_nowait(change)

    async def one_by_one(self, thread: str) -> float:
        """Decide one call after the other; return the seconds until the run ended."""
        approval = await self._asked(thread)
        began = time.perf_counter()
        for item in approval.items:
            click = click_on(approval, item.index)
            outcome = await self._reviews.decide(click, Approve(), ANA)
            if not isinstance(outcome, Decided):
                raise NotMeasured(f"A call was not decided: {outcome!r}.")
        return await self._ended(approval, began)

    async def at_once(self, thread: str) -> float:
        """Approve all calls by one gesture; return the seconds until the run ended."""
        approval = await self._asked(thread)
        click = click_on(approval).with_(action_hash=approval.digest)
        began = time.perf_counter()
        partition: dict[int, Decision | None] = {
            item.index: Approve() for item in approval.items
        }
        outcome = await self._reviews.decide_card(approval, click, partition, ANA)
        if not isinstance(outcome, GestureDecided):
            raise NotMeasured(f"The batch was not decided: {outcome!r}.")
        return await self._ended(approval, began)

    async def _asked(self, thread: str) -> Approval:
        """Let the agent submit, and return its approval."""
        for n in range(self._calls):
            self._stub.expect(f"{thread}-{n}")
        await self._reviews.ask_agent(AGENT, thread, thread, requester=DAN, origin=None)
        keys, run_ref = self._store.keys_of_tenant("default"), run_of(thread)
        listed: list[Listed] = []
        while not listed:
            change = await self._changes.get()
            if change.error is not None:
                raise NotMeasured(f"The agent did not ask: {change.error!r}.")
            listed = await self._store.approvals.of_run(keys, run_ref)
        if len(listed) != 1:
            raise NotMeasured(f"The turn has {len(listed)} approvals.")
        loaded = await self._reviews.read(listed[0].id)
        assert loaded is not None, listed
        return loaded.approval

    async def _ended(self, approval: Approval, began: float) -> float:
        """Return the seconds until the run has no open calls."""
        keys, run_ref = self._store.keys_of_tenant("default"), run_of(approval.thread)
        while await self._store.approvals.has_open(keys, run_ref):
            change = await self._changes.get()
            if change.error is not None:
                raise NotMeasured(f"The run was given up: {change.error!r}.")
        return time.perf_counter() - began


class Bare:
    """The same graph with LangChain's middleware, resumed in the deciding process."""

    def __init__(self, graph: Graph, stub: PaymentsStub, calls: int) -> None:
        # Only the used part of a graph; LangGraph's types are partial.
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
        await self._graph.ainvoke(answer, config_of(thread))

    async def _asked(self, thread: str) -> list[str]:
        for n in range(self._calls):
            self._stub.expect(f"{thread}-{n}")
        given = {"messages": [HumanMessage(thread)]}
        stopped = await self._graph.ainvoke(given, config_of(thread))
        asked = [one.id for one in stopped["__interrupt__"]]
        if len(asked) != self._calls:
            raise NotMeasured(f"LangChain asked {len(asked)} times.")
        return asked


def _refund_all(calls: int) -> Reply:
    """Return a model that requests all refunds in one message."""

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

    return reply
