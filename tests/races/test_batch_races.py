"""A batch decision is written whole or not at all, whatever happens beside it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.service.harness import ANA, BEN, ServiceHarness
from tests.streams import audit_entries
from twokey.gateway.approvals.decisions import Approve, Click, Decision, Edit, Reject
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.store.engine import EmbeddedEngine
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("TWOKEY_RACE_APPROVALS", "200"))
"""GitHub runs 2,000 once a week."""

SIZE = 12
STEPS = 320
"""About how many steps of the event loop a decision on so many calls takes."""
REFUND = "process_refund"
TOOL = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)

Rival = Callable[[ServiceHarness, Verdict, str], Awaitable[object]]


async def opened(harness: ServiceHarness, thread: str) -> tuple[Verdict, Approval]:
    """Ask for a batch of refunds in a thread of its own."""
    refunds: list[JsonObject] = [{"amount": n + 1} for n in range(SIZE)]
    _, verdicts = await harness.submit(
        *((REFUND, args) for args in refunds), thread=thread
    )
    return verdicts[3], await harness.approval(verdicts[0].item_id)


async def approve_all(harness: ServiceHarness, approval: Approval) -> str:
    """Decide the batch as it was seen; return the outcome."""
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.digest,
    )
    partition: dict[int, Decision | None] = {
        item.index: Approve() for item in approval.items
    }
    partition[SIZE - 1] = Reject(reason="no")
    outcome = await harness.reviews.decide_batch(click, partition, ANA)
    return outcome.kind


async def edits_one(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    edit = Edit(args={"amount": 9})
    await harness.reviews.decide(await harness.click(verdict), edit, BEN)


async def rejects_one(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    await harness.reviews.decide(await harness.click(verdict), Reject(reason="no"), BEN)


async def decides_all(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    await approve_all(harness, await harness.approval(verdict.item_id))


async def time_ends(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    await harness.overdue((await harness.approval(verdict.item_id)).id)
    await harness.sweeper.sweep()


async def moves_on(harness: ServiceHarness, _: Verdict, thread: str) -> None:
    await harness.submit((REFUND, {"amount": 1}), thread=thread)


async def freezes(harness: ServiceHarness, _: Verdict, __: str) -> None:
    await harness.reviews.freezes.freeze(TOOL, "U0BEN", "stop")
    await harness.reviews.freezes.unfreeze(TOOL, "U0BEN", "go")


RIVALS: tuple[Rival, ...] = (
    edits_one,
    rejects_one,
    decides_all,
    time_ends,
    moves_on,
    freezes,
)


async def after_steps(steps: int, rival: Awaitable[object]) -> None:
    """Let the others take so many steps of the event loop first."""
    for _ in range(steps):
        await asyncio.sleep(0)
    await rival


def is_whole(approval: Approval) -> bool:
    """Say whether each call has its part of the batch decision.

    Not by state: a new turn may end what was authorized.
    """
    return by_ana(approval) == [Verb.APPROVE] * (SIZE - 1) + [Verb.REJECT]


def is_untouched(approval: Approval) -> bool:
    """Say whether no call has a part of the batch decision."""
    return not by_ana(approval)


def by_ana(approval: Approval) -> list[Verb]:
    return [
        item.decision.verb
        for item in approval.items
        if item.decision and item.decision.by.user == ANA.user
    ]


@pytest.mark.timeout(900)
async def test_no_batch_decision_is_recorded_in_part(store: Store) -> None:
    harness = ServiceHarness(store)
    seen: Counter[str] = Counter()
    for number in range(ROUNDS):
        rival, thread = RIVALS[number % len(RIVALS)], f"t{number}"
        one, approval = await opened(harness, thread)

        outcome, _ = await asyncio.gather(
            approve_all(harness, approval),
            # A decision asks the store about each of its calls first. The rival comes
            # at another step of that in each round.
            after_steps(number * 7 % STEPS, rival(harness, one, thread)),
        )

        after = await harness.approval(one.item_id)
        seen[f"{rival.__name__} {outcome}"] += 1
        if outcome == "batchdecided":
            assert is_whole(after), rival
        elif rival is not decides_all:
            assert is_untouched(after), (rival, outcome)
    audit = await audit_entries(store.conn, store.keys_of_tenant("default"))
    decided = Counter(
        event.approval for event in audit if event.name is EventName.APPROVAL_DECIDED
    )
    assert set(decided.values()) == {1}
    # Both sides have to win at times, or nothing was raced.
    assert any(name.endswith("batchdecided") for name in seen)
    assert any(not name.endswith("batchdecided") for name in seen)


@pytest.mark.timeout(600)
async def test_a_store_that_is_killed_has_a_batch_decision_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "valkey"
    for number in range(4):
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url)
            harness = ServiceHarness(store)
            batches = [(await opened(harness, f"t{number}-{n}"))[1] for n in range(30)]
            assert engine.pid is not None
            outcomes = await until_killed(harness, batches, engine.pid)
            await store.close()
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url)
            harness = ServiceHarness(store)
            for batch, outcome in zip(batches, outcomes, strict=True):
                after = await harness.approval(batch.items[0].id)
                assert is_whole(after) or is_untouched(after)
                if outcome == "batchdecided":
                    assert is_whole(after)
            await store.close()


async def until_killed(
    harness: ServiceHarness, batches: list[Approval], pid: int
) -> list[str]:
    """Decide one batch after the other; kill the store in the middle of one."""
    outcomes: list[str] = []
    for place, batch in enumerate(batches):
        if place == len(batches) // 2:
            asyncio.get_running_loop().call_soon(os.kill, pid, signal.SIGKILL)
        try:
            outcomes.append(await approve_all(harness, batch))
        except StoreUnavailable:
            outcomes.append("unknown")
    return outcomes
