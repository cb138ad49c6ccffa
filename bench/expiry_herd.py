"""Measure the latency of decisions while thousands of approvals expire at once.

`python -m bench.expiry_herd 10000` opens that many approvals, lets all of them be due
at once, and runs the sweep of one replica as the product does: in the same process as
the decisions, which are timed before and during it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.stats import MEDIAN, P95, NotMeasured, percentile
from bench.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decided,
    Reviewer,
)
from twokey.gateway.approvals.record import Approval, approval_of
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from twokey.gateway.resume.periodic import SWEEP_S, repeat
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.store.engine import EmbeddedEngine
from twokey.gateway.store.store import Store

POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, reviewers: U0ANA}
protect: {pending_per_agent: 10000, requests_per_10m: 100000}
tools: {refund: {tier: approve}}
"""
COUNT = 10_000
CLICKS = 300
WITHIN_S = 60.0
ANA = Reviewer(team="T0", user="U0ANA", account=AccountKind.MEMBER)

_PER_AGENT = 5_000
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class HerdResult:
    """Result: seconds until all had expired, and each click in milliseconds."""

    count: int
    seconds: float
    before_ms: list[float]
    during_ms: list[float]


async def measure(
    store: Store, *, count: int = COUNT, clicks: int = CLICKS
) -> HerdResult:
    """Let ``count`` approvals be due at once, and click beside it.

    Raises:
        NotMeasured: when one of them did not end, or a click did not count.
    """
    policy = load_policy(POLICY, "policy.yml")
    agents = AgentService(store, lambda: policy)
    reviews = ReviewService(store, lambda: policy)
    herd = await _opened(agents, reviews, count, "herd")
    chosen = await _opened(agents, reviews, 2 * clicks, "clicked")
    before_ms = [await _click(reviews, one) for one in chosen[:clicks]]
    await _let_end(store, herd)
    stop = asyncio.Event()
    began = time.perf_counter()
    sweep = asyncio.create_task(repeat(Sweeper(store).sweep, stop, every_s=SWEEP_S))
    late = asyncio.create_task(_until_all_ended(store))
    during_ms = [await _click(reviews, one) for one in chosen[clicks:]]
    await late
    seconds = time.perf_counter() - began
    stop.set()
    await sweep
    return HerdResult(count, seconds, before_ms, during_ms)


async def _opened(
    agents: AgentService, reviews: ReviewService, count: int, name: str
) -> list[Approval]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def submit(number: int) -> Approval:
        agent = f"{name}-{number // _PER_AGENT}"
        ref = TurnRef(agent=agent, thread=f"{name}-{number}", message_id="m")
        call = ProposedCall(tool="refund", args={"n": number}, tool_call_id="c")
        async with limit:
            (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
            loaded = await reviews.read(approval_of(verdict.item_id)[0])
        if loaded is None:
            raise NotMeasured(f"{verdict.tool!r} was not held: {verdict.reason}")
        return loaded.approval

    return list(await asyncio.gather(*(submit(number) for number in range(count))))


async def _let_end(store: Store, herd: list[Approval]) -> None:
    """Move the clock: all of their deadlines are in the same second of the past."""
    keys = store.keys_of_tenant("default")
    for place, one in enumerate(herd):
        due_ms = 1 + place % 1000
        await store.conn.transaction(
            ["HSET", keys.head(one.id), "expires", due_ms],
            ["ZADD", keys.expiry, due_ms, keys.listed(one.id)],
        )


async def _until_all_ended(store: Store) -> None:
    """Wait until nothing is overdue."""
    async with asyncio.timeout(10 * WITHIN_S):
        while await store.approvals.overdue(store.keys_of_tenant("default"), 1):  # noqa: ASYNC110 - Redis is asked, there is no event for this
            await asyncio.sleep(0.05)


async def _click(reviews: ReviewService, approval: Approval) -> float:
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.items[0].action_hash,
    )
    began = time.perf_counter()
    outcome = await reviews.decide(click, Approve(), ANA)
    taken_ms = 1000 * (time.perf_counter() - began)
    if not isinstance(outcome, Decided):
        raise NotMeasured(f"A click ended with {outcome.kind!r} instead of a decision.")
    return taken_ms


def report(result: HerdResult) -> str:
    """Return the figures as lines."""
    rows = [
        f"{result.count} approvals due in one second ended in {result.seconds:.1f} s"
    ]
    for name, taken in (("before", result.before_ms), ("meanwhile", result.during_ms)):
        half, most = percentile(taken, MEDIAN), percentile(taken, P95)
        rows.append(f"a decision {name}: median {half:.1f} ms, 95 % {most:.1f} ms")
    return "\n".join(rows)


async def _main(count: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="tk-herd-") as folder,
        EmbeddedEngine(Path(folder)) as engine,
    ):
        store = Store(engine.url, secrets=SECRETS)
        try:
            herd = await measure(store, count=count)
        finally:
            await store.close()
    sys.stdout.write(report(herd) + "\n")
    if herd.seconds > WITHIN_S * max(1.0, count / COUNT):
        raise NotMeasured(f"The herd took {herd.seconds:.1f} s, more than {WITHIN_S}.")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
