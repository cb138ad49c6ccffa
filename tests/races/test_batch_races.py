"""A batch decision is written whole or not at all, under any concurrent change."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decision,
    Edit,
    Reject,
    Reviewer,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.engine import EmbeddedEngine
from keyturn.gateway.store.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.races.interleaver import Interleaver
from tests.races.store_kill import until_killed
from tests.service.harness import ANA, BEN, ServiceHarness
from tests.store_secrets import SECRETS
from tests.streams import audit_entries

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("KEYTURN_BATCH_ROUNDS", "60"))
"""GitHub runs 500 once a week."""

KILLS = max(4, ROUNDS // 10)
"""How often the store is killed in the middle of a decision."""

SIZE = 12
PLACES = 6
"""Before and in each of the round trips of a decision, however many calls it is on."""

REFUND = "process_refund"
TOOL = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)

Row = tuple[str, str]
"""Id and action hash of a call, as the batch digest takes them."""

Rival = Callable[[ServiceHarness, Verdict, str], Coroutine[object, object, object]]


async def opened(harness: ServiceHarness, thread: str) -> tuple[Verdict, Approval]:
    """Request a batch of refunds in a separate thread."""
    refunds: list[JsonObject] = [{"amount": n + 1} for n in range(SIZE)]
    _, verdicts = await harness.submit(
        *((REFUND, args) for args in refunds), thread=thread
    )
    return verdicts[3], await harness.approval(verdicts[0].item_id)


async def approve_all(harness: ServiceHarness, approval: Approval) -> str:
    """Decide the batch as it was seen; return the outcome."""
    return await decide(harness, approval, as_seen(approval), ANA)


def as_seen(approval: Approval) -> dict[int, Decision | None]:
    """Return what Ana decides: all but the last call are approved."""
    partition: dict[int, Decision | None] = {
        item.index: Approve() for item in approval.items
    }
    partition[SIZE - 1] = Reject(reason="no")
    return partition


async def decide(
    harness: ServiceHarness,
    approval: Approval,
    partition: Mapping[int, Decision | None],
    reviewer: Reviewer,
    rows: Sequence[Row] | None = None,
) -> str:
    """Decide a batch; with other rows, by the seal of a batch of these."""
    rows = rows_of(approval) if rows is None else rows
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=digest.batch_digest(approval.id, rows),
    )
    return (
        await harness.reviews.decide_card(approval, click, partition, reviewer)
    ).kind


def rows_of(approval: Approval) -> list[Row]:
    """Return what the batch digest is made of."""
    return [(item.id, item.action_hash) for item in approval.items]


async def edits_one(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    edit = Edit(args={"amount": 9})
    await harness.reviews.decide(await harness.click(verdict), edit, BEN)


async def rejects_one(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    await harness.reviews.decide(await harness.click(verdict), Reject(reason="no"), BEN)


async def rejects_all(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    approval = await harness.approval(verdict.item_id)
    await decide(
        harness, approval, dict.fromkeys(range(SIZE), Reject(reason="no")), BEN
    )


async def one_expires(harness: ServiceHarness, verdict: Verdict, _: str) -> None:
    """End the time of one call, which an edit had raised."""
    approval = await harness.approval(verdict.item_id)
    keys = harness.store.keys_of_tenant("default")
    await harness.store.conn.transaction(
        ["HSET", keys.head(approval.id), "5:e", 1],
        ["ZADD", keys.expiry, 1, keys.listed(approval.id)],
    )
    await harness.sweeper.sweep()


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
    rejects_all,
    decides_all,
    time_ends,
    one_expires,
    moves_on,
    freezes,
)


def is_whole(approval: Approval) -> bool:
    """Return whether each call has its part of the batch decision.

    Not by state: a new turn may end authorized calls.
    """
    return by_ana(approval) == [Verb.APPROVE] * (SIZE - 1) + [Verb.REJECT]


def is_untouched(approval: Approval) -> bool:
    """Return whether no call has a part of the batch decision."""
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

        with pytest.MonkeyPatch.context() as patch:
            outcome, _ = await Interleaver(store.conn, patch).run(
                [approve_all(harness, approval), rival(harness, one, thread)],
                # Another order of their round trips in each round.
                random.Random(number).randrange,  # noqa: S311 - no secret
            )

        after = await harness.approval(one.item_id)
        seen[f"{rival.__name__} {outcome}"] += 1
        if outcome == "gesturedecided":
            assert is_whole(after), rival
        elif rival is not decides_all:
            assert is_untouched(after), (rival, outcome)
    audit = await audit_entries(store.conn, store.keys_of_tenant("default"))
    decided = Counter(
        event.approval for event in audit if event.name is EventName.APPROVAL_DECIDED
    )
    assert set(decided.values()) == {1}
    # Both sides have to win at times, or nothing was raced.
    assert any(name.endswith("gesturedecided") for name in seen)
    assert any(not name.endswith("gesturedecided") for name in seen)


def inserted(rows: list[Row], other: list[Row]) -> list[Row]:
    return [*rows[:3], other[0], *rows[3:]]


def dropped(rows: list[Row], _: list[Row]) -> list[Row]:
    return rows[:-1]


def reordered(rows: list[Row], _: list[Row]) -> list[Row]:
    return [rows[1], rows[0], *rows[2:]]


def duplicated(rows: list[Row], _: list[Row]) -> list[Row]:
    return [*rows, rows[-1]]


def borrowed(rows: list[Row], other: list[Row]) -> list[Row]:
    return [*rows[:-1], other[-1]]


def swapped(rows: list[Row], _: list[Row]) -> list[Row]:
    (one, its_hash), (two, other_hash), *rest = rows
    return [(one, other_hash), (two, its_hash), *rest]


MANIPULATIONS = (inserted, dropped, reordered, duplicated, borrowed, swapped)


def misfits(approval: Approval) -> list[dict[int, Decision | None]]:
    """Return partitions that do not name each waiting call once."""
    whole = as_seen(approval)
    lacks = {index: whole[index] for index in whole if index}
    return [lacks, {**whole, SIZE: Approve()}, {**lacks, SIZE: Approve()}, {}]


@pytest.mark.timeout(900)
async def test_a_manipulated_batch_decides_nothing(store: Store) -> None:
    harness = ServiceHarness(store)
    _, approval = await opened(harness, "t1")
    _, other = await opened(harness, "t2")
    outcomes: Counter[str] = Counter()
    for number in range(ROUNDS):
        manipulate = MANIPULATIONS[number % len(MANIPULATIONS)]
        rows = manipulate(rows_of(approval), rows_of(other))
        outcomes[await decide(harness, approval, as_seen(approval), ANA, rows)] += 1
    for partition in misfits(approval):
        outcomes[await decide(harness, approval, partition, ANA)] += 1

    assert outcomes == {"changed": ROUNDS + 4}
    after = await harness.approval(approval.items[0].id)
    assert after == approval
    # As it is, it can be decided: nothing but the manipulation was refused.
    assert await approve_all(harness, approval) == "gesturedecided"


@pytest.mark.timeout(1800)
async def test_a_store_that_is_killed_has_a_batch_decision_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    folder, in_the_middle = tmp_path / "valkey", 0
    for number in range(KILLS):
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            harness = ServiceHarness(store)
            batches = [(await opened(harness, f"t{number}-{n}"))[1] for n in range(4)]
            assert engine.pid is not None
            decisions = [approve_all(harness, batch) for batch in batches]
            outcomes, is_cut = await until_killed(
                store.conn, decisions, engine.pid, number % PLACES
            )
            await store.close()
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            harness = ServiceHarness(store)
            for batch, outcome in zip(batches, outcomes, strict=True):
                after = await harness.approval(batch.items[0].id)
                assert is_whole(after) or is_untouched(after)
                if outcome == "gesturedecided":
                    assert is_whole(after)
            await store.close()
        in_the_middle += is_cut
    assert in_the_middle == KILLS, "a decision has fewer round trips"
