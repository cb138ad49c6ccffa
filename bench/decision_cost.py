"""Measure latency and store round trips of each step of an approval.

Refunds are requested, approved, claimed and finished one by one. Beside each, a plain
SET goes to the same Valkey, with ``appendfsync always``. The number of round trips
matters most: over a network they dominate the latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from unittest.mock import patch

from bench.decision_to_tool import Plan
from bench.stats import Figure, Measured, NotMeasured, ratio
from bench.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decided,
    Reviewer,
)
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.wire import (
    Claimed,
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
)
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.multiplexed import Command, MultiplexedConnection, Reply
from twokey.gateway.store.open_store import open_store
from twokey.gateway.store.store import Store

TITLE = "The steps of an approval"

WRITE, DECISION, CLAIM, FINISH = "a durable write", "decision", "claim", "finish"

_POLICY = load_policy(
    """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0BENCH, reviewers: [U0ANA]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000}
tools: {refund: {tier: approve}}
""",
    "bench.yml",
)
_ANA = Reviewer(team="T0", user="U0ANA", account=AccountKind.MEMBER)

T = TypeVar("T")


FULL = Plan(rounds=8, approvals=50)
QUICK = Plan(rounds=2, approvals=3)


@dataclass(slots=True)
class Round:
    """Times in milliseconds and round trips, by what was done."""

    sent: list[int]
    taken: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    trips: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    async def timed(self, name: str, work: Awaitable[T]) -> T:
        """Await something; note how long it took and how often it went to the store."""
        before, began = self.sent[0], time.perf_counter()
        result = await work
        taken_ms = 1000 * (time.perf_counter() - began)
        self.taken.setdefault(name, []).append(taken_ms)
        self.trips.setdefault(name, []).append(float(self.sent[0] - before))
        return result


async def measure(*, is_quick: bool = False) -> Figure:
    """Run approvals from request to end, and time each step."""
    return await measured(QUICK if is_quick else FULL)


async def measured(plan: Plan) -> Figure:
    """Measure as much as the plan says.

    Raises:
        NotMeasured: when a step was refused.
    """
    rounds: list[Round] = []
    with TemporaryDirectory(prefix="tk-bench-") as folder, counted() as sent:
        async with open_store(None, Path(folder), secrets=SECRETS) as store:
            await play(store, Round(sent), "warm-up", 3)
            for turn in range(plan.rounds):
                rounds.append(Round(sent))
                await play(store, rounds[-1], str(turn), plan.approvals)
    write, decision, claim, finish = (
        Measured(name, "ms", tuple(tuple(one.taken[name]) for one in rounds))
        for name in (WRITE, DECISION, CLAIM, FINISH)
    )
    once, *trips = (
        Measured(name, "trips", tuple(tuple(one.trips[name]) for one in rounds))
        for name in (WRITE, DECISION, CLAIM, FINISH)
    )
    return Figure(
        TITLE,
        f"{plan.rounds} rounds of {plan.approvals} approvals, one after the other; "
        "Valkey with appendfsync always.\n"
        "A round trip is a command or a script that is sent to the store and answered.",
        (write, decision, claim, finish),
        (
            *(
                ratio(f"round trips of a {one.name}", one, once, at_most=most)
                for one, most in zip(trips, (1, 1, 1), strict=True)
            ),
            *(
                ratio(f"{one.name} / {WRITE}, p50", one, write)
                for one in (decision, claim, finish)
            ),
        ),
    )


@contextmanager
def counted() -> Generator[list[int]]:
    """Count what is sent to the store, in the first and only number of a list."""
    sent, plain = [0], MultiplexedConnection.ask

    def ask(
        self: MultiplexedConnection, commands: Sequence[Command], deadline: float
    ) -> asyncio.Future[list[Reply]]:
        sent[0] += 1
        return plain(self, commands, deadline)

    with patch.object(MultiplexedConnection, "ask", ask):
        yield sent


async def play(store: Store, turn: Round, name: str, count: int) -> list[Claimed]:
    """Run so many approvals from request to end; return what was granted."""
    every: list[Claimed] = []
    agents = AgentService(store, lambda: _POLICY)
    reviews = ReviewService(store, lambda: _POLICY)
    for number in range(count):
        await turn.timed(WRITE, store.conn.command("SET", f"bench:{number}", "x" * 500))
        ref = TurnRef(agent="support", thread=f"{name}-{number}", message_id="m")
        call = ProposedCall(tool="refund", args={"amount": number}, tool_call_id="c")
        (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
        item_id = verdict.item_id
        click = await _click(reviews, approval_of(item_id)[0])
        outcome = await turn.timed(DECISION, reviews.decide(click, Approve(), _ANA))
        _ensure(outcome, Decided)
        request = ClaimRequest(
            item_id=item_id, ref=ref, tool="refund", tool_call_id="c", owner="bench"
        )
        reply = await turn.timed(CLAIM, agents.claim(request))
        granted = _ensure(reply, Claimed)
        every.append(granted)
        result = Result(ok=True)
        if not await turn.timed(FINISH, agents.finish(item_id, granted.fence, result)):
            raise NotMeasured("A result was refused.")
    return every


async def _click(reviews: ReviewService, approval_id: str) -> Click:
    # The publisher of the same process reads each record to draw its card.
    loaded = await reviews.read_as_of_now(approval_id)
    if loaded is None:
        raise NotMeasured("A call was not held.")
    (item,) = loaded.approval.items
    return Click(
        approval=approval_id,
        index=0,
        version=loaded.approval.version,
        action_hash=item.action_hash,
    )


def _ensure(reply: object, wanted: type[T]) -> T:
    if not isinstance(reply, wanted):
        raise NotMeasured(f"A step ended with {type(reply).__name__}.")
    return reply
