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
from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.types import Command

from bench.both_agents import both_agents, config_of, run_of
from bench.payments_stub import Graph, PaymentsStub, Reply
from bench.stats import Figure, NotMeasured, result
from bench.world import AGENT, ANA, DAN, POLICY, asked_in, in_turns, shown
from keyturn.agent.scripted_model import calling
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decided,
    Decision,
    GestureDecided,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.garbage_collection import spare_what_is_there
from keyturn.gateway.resume.threads import ThreadChange
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.store import Store
from tests.approvals.builders import click_on

ONE_BY_ONE_S, AT_ONCE_S = 6.0, 0.6
"""The targets with 56 calls."""

_TIMEOUT_S = 600.0


async def measure(*, is_quick: bool = False) -> Figure:
    """Settle the calls of a turn one by one, then at once."""
    rounds, n = (1, 4) if is_quick else (3, 56)
    stub = PaymentsStub()
    async with both_agents(
        stub, _refund_all(n), lambda store: WithKeyturn(store, stub, n)
    ) as (ours, _, graph):
        bare = Bare(graph, stub, n)
        # Like `keyturn gateway`; LangChain's runs are in the same process.
        spare_what_is_there()
        ways = {
            "one by one": ours.one_by_one,
            "as one batch": ours.at_once,
            "LangChain, one by one": bare.one_by_one,
            "LangChain, at once": bare.at_once,
        }
        async with asyncio.timeout(_TIMEOUT_S):
            found = await in_turns(ways, rounds, unit="s")
    singly, at_once, bare_singly, bare_at_once = found
    peer = "LangChain, which records nothing"
    return Figure(
        "Many calls of one turn",
        f"{rounds} rounds of {n} calls, decided in one thread; Valkey with "
        "appendfsync always, SQLite checkpoints.",
        tuple(found),
        (
            result(
                f"{n} calls one by one",
                singly,
                at_most=ONE_BY_ONE_S,
                limit=f"{peer}: {bare_singly.at(0.5):.2f} s",
            ),
            result(
                f"{n} calls as one batch",
                at_once,
                at_most=AT_ONCE_S,
                limit=f"{peer}: {bare_at_once.at(0.5):.2f} s",
            ),
            result("one by one: Keyturn / LangChain", singly, bare_singly),
            result("one batch: Keyturn / LangChain", at_once, bare_at_once),
        ),
    )


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
        while not (asked := await asked_in(self._store, run_of(thread))):
            change = await self._changes.get()
            if change.error is not None:
                raise NotMeasured(f"The agent did not ask: {change.error!r}.")
        if len(asked) != 1:
            raise NotMeasured(f"The turn has {len(asked)} approvals.")
        return await shown(self._store, asked[0])

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
