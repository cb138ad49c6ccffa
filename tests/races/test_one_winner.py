"""Many people, many processes, one moment: exactly one decision wins."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decided,
    Decision,
    Edit,
    Outcome,
    Reject,
    Respond,
    Reviewer,
    Stale,
)
from keyturn.gateway.approvals.events import BATCH_MEMBER, EventName
from keyturn.gateway.approvals.gestures import Choice, Gesture
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.levels import size
from tests.races.interleaver import Interleaver
from tests.races.store_kill import until_killed
from tests.service.harness import ANA, BEN, ServiceHarness
from tests.store_secrets import SECRETS
from tests.streams import audit_entries

APPROVALS = size(deep=2000, short=60)
"""Each is a race of its own, and ten run at once."""

DECIDERS = 8
AT_ONCE = 10
_DECIDING = {
    EventName.ITEM_AUTHORIZED,
    EventName.ITEM_REJECTED,
    EventName.ITEM_ANSWERED,
}


def different(n: int) -> Decision:
    """Return a decision that no other of the eight makes."""
    choices: list[Decision] = [
        Approve(),
        Reject(reason=f"no {n}"),
        Respond(message=f"ask {n}"),
        Edit(args={"amount": n + 1}, reason=f"edit {n}"),
    ]
    return choices[n % len(choices)]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_one_of_eight_decisions_wins_once(store: Store) -> None:
    harness = ServiceHarness(store)
    clicks = [(await harness.refund(thread=f"t{n}"))[0] for n in range(APPROVALS)]
    gate = asyncio.Semaphore(AT_ONCE)
    # A store of one process decides about an approval in turn.
    stores = [Store(store.conn.url, secrets=SECRETS) for _ in range(DECIDERS)]
    reviews = [ServiceHarness(one).reviews for one in stores]

    async def race(place: int) -> list[Outcome]:
        async with gate:
            return await asyncio.gather(
                *(
                    each.decide(clicks[place], different(n), ANA if n % 2 else BEN)
                    for n, each in enumerate(reviews)
                )
            )

    rounds = await asyncio.gather(*(race(place) for place in range(APPROVALS)))
    await asyncio.gather(*(one.close() for one in stores))

    keys = store.keys_of_tenant("default")
    audit = await audit_entries(store.conn, keys)
    decided = Counter(event.item for event in audit if event.name in _DECIDING)
    winners = [sum(o.kind == "decided" for o in outcomes) for outcomes in rounds]
    losers = Counter(o.kind for outcomes in rounds for o in outcomes)
    assert winners == [1] * APPROVALS
    assert set(losers) <= {"decided", "stale", "changed"}
    assert len(decided) == APPROVALS
    assert set(decided.values()) == {1}
    assert await harness.jobs() == APPROVALS


# A decision on calls of several approvals is written whole or not at all.


ROUNDS = size(deep=500, short=24)
KILLS = size(deep=50, short=4)
"""How often the store is killed in the middle of a decision."""

SIZE, OTHERS = 12, 3
PLACES = 6
"""Before and in each of the round trips of a decision, however many calls it is on."""

REFUND = "process_refund"
TOOL = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)
WHOLE = [Verb.EDIT, *[Verb.APPROVE] * (SIZE - 2), Verb.REJECT]
NO = Reject(reason="no")

Rival = Callable[[ServiceHarness, list[Click], str], Coroutine[object, object, object]]


async def opened(harness: ServiceHarness, name: str, size: int) -> list[Click]:
    """Request refunds in separate threads; return them as a person sees them."""
    return [
        (await harness.refund(number + 1, thread=f"{name}-{number}"))[0]
        for number in range(size)
    ]


async def decide(
    harness: ServiceHarness,
    clicks: Sequence[Click],
    digest: str,
    decisions: Sequence[Decision | None] | None = None,
    by: Reviewer = ANA,
) -> str:
    """Decide the calls as they were seen: edit the first, reject the last."""
    edit = Edit(args={"amount": 99})
    chosen = decisions or [edit, *[Approve()] * (len(clicks) - 2), NO]
    card = Click(approval="col_1", index=0, version=1, action_hash=digest)
    seen = [one.with_(is_shared=True) for one in clicks]
    gesture = Gesture(dict(enumerate(map(Choice, seen, chosen))), card)
    outcome = await harness.reviews.decide_gesture(gesture, by)
    return outcome.kind


async def verbs(
    harness: ServiceHarness, clicks: Sequence[Click], by: Reviewer
) -> list[Verb]:
    """Return a person's decisions on calls, without undecided ones.

    Not by state: a new turn may end authorized calls.
    """
    items = [await harness.item(f"{one.approval}.0") for one in clicks]
    words = [item.decision for item in items if item.decision]
    return [word.verb for word in words if word.by.user == by.user]


async def edits_one(harness: ServiceHarness, clicks: list[Click], _: str) -> None:
    await harness.reviews.decide(clicks[5], Edit(args={"amount": 9}), BEN)


async def approves_one(harness: ServiceHarness, clicks: list[Click], _: str) -> None:
    await harness.reviews.decide(clicks[SIZE - 1], Approve(), BEN)


async def rejects_one(harness: ServiceHarness, clicks: list[Click], _: str) -> None:
    await harness.reviews.decide(clicks[0], NO, BEN)


async def overlaps(harness: ServiceHarness, clicks: list[Click], name: str) -> None:
    """Decide the last two of the calls by another gesture, and the call besides."""
    others = clicks[-OTHERS:]
    no = [NO] * len(others)
    outcome = await decide(harness, others, f"sha256:{name}-ben", no, BEN)
    found = await verbs(harness, others, BEN)
    assert found == ([Verb.REJECT] * len(no) if outcome == "gesturedecided" else [])


async def same_again(harness: ServiceHarness, clicks: list[Click], name: str) -> None:
    await decide(harness, clicks[:SIZE], f"sha256:{name}")


async def one_expires(harness: ServiceHarness, clicks: list[Click], _: str) -> None:
    await harness.overdue(clicks[7].approval)
    await harness.sweeper.sweep()


async def moves_on(harness: ServiceHarness, _: list[Click], name: str) -> None:
    await harness.submit((REFUND, {"amount": 1}), thread=f"{name}-3")


async def freezes(harness: ServiceHarness, _: list[Click], __: str) -> None:
    await harness.reviews.freezes.freeze(TOOL, "U0BEN", "stop")
    await harness.reviews.freezes.unfreeze(TOOL, "U0BEN", "go")


RIVALS: tuple[Rival, ...] = (
    edits_one,
    approves_one,
    rejects_one,
    overlaps,
    same_again,
    one_expires,
    moves_on,
    freezes,
)


@pytest.mark.timeout(1800)
async def test_no_joint_decision_is_recorded_in_part(store: Store) -> None:
    harness = ServiceHarness(store)
    seen: Counter[str] = Counter()
    for number in range(ROUNDS):
        rival, name = RIVALS[number % len(RIVALS)], f"t{number}"
        # One call more than the gesture is about.
        *clicks, _ = every = await opened(harness, name, SIZE + 1)

        with pytest.MonkeyPatch.context() as patch:
            outcome, _ = await Interleaver(store.conn, patch).run(
                [
                    decide(harness, clicks, f"sha256:{name}"),
                    rival(harness, every, name),
                ],
                # Another order of their round trips in each round.
                random.Random(number).randrange,  # noqa: S311 - no secret
            )

        seen[f"{rival.__name__} {outcome}"] += 1
        found = await verbs(harness, clicks, ANA)
        if outcome == "gesturedecided":
            assert found == WHOLE, rival
        elif rival is same_again:
            assert found in ([], WHOLE)
        else:
            assert found == [], (rival, outcome)
    await told_whole(store)
    # Both sides have to win at times, or nothing was raced.
    assert any(name.endswith("gesturedecided") for name in seen)
    assert any(name.endswith("gesturerefused") for name in seen)


async def told_whole(store: Store) -> None:
    """Each gesture is in the audit log once, with each of its calls once."""
    audit = await audit_entries(store.conn, store.keys_of_tenant("default"))
    gestures = Counter(
        event.data["digest"] for event in audit if event.name is EventName.CALLS_DECIDED
    )
    told = {
        (event.data[BATCH_MEMBER], event.item, event.name)
        for event in audit
        if BATCH_MEMBER in event.data and event.name is not EventName.ITEM_EDITED
    }
    calls = Counter(digest for digest, _, _ in told)
    assert {*gestures.values()} == {1}
    assert {*calls} == {*gestures}
    for digest, count in calls.items():
        assert count == (OTHERS if digest.endswith("-ben") else SIZE)


@pytest.mark.timeout(1800)
async def test_a_killed_store_has_whole_decisions(tmp_path: Path) -> None:
    folder, in_the_middle = tmp_path / "valkey", 0
    for number in range(KILLS):
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            harness = ServiceHarness(store)
            collections = [
                await opened(harness, f"t{number}-{n}", SIZE) for n in range(4)
            ]
            assert engine.pid is not None
            decisions = [
                decide(harness, clicks, f"sha256:{place}")
                for place, clicks in enumerate(collections)
            ]
            outcomes, is_cut = await until_killed(
                store.conn, decisions, engine.pid, number % PLACES
            )
            await store.close()
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            harness = ServiceHarness(store)
            for clicks, outcome in zip(collections, outcomes, strict=True):
                found = await verbs(harness, clicks, ANA)
                assert found in ([], WHOLE)
                assert found == WHOLE or outcome != "gesturedecided"
                states = [
                    (await harness.item(f"{one.approval}.0")).state for one in clicks
                ]
                assert (ItemState.PENDING in states) == (not found)
            await store.close()
        in_the_middle += is_cut
    assert in_the_middle == KILLS, "a decision has fewer round trips"


# Kill -9 of Valkey in the middle of decisions: none that was acknowledged is lost.


APPROVALS_A_KILL = size(deep=150, short=45)
KILLS_OF_VALKEY = size(deep=10, short=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_killed_valkey_loses_no_decision(tmp_path: Path) -> None:
    folder = tmp_path / "valkey"
    acknowledged: set[str] = set()
    for round_ in range(KILLS_OF_VALKEY):
        with EmbeddedEngine(folder) as engine:
            store = Store(engine.url, secrets=SECRETS)
            harness = ServiceHarness(store)
            clicks = [
                (await harness.refund(thread=f"t{round_}-{n}"))[0]
                for n in range(APPROVALS_A_KILL)
            ]
            assert engine.pid is not None
            await decide_until_killed(harness, clicks, acknowledged, engine.pid)
            await store.close()

    with EmbeddedEngine(folder) as engine:
        store = Store(engine.url, secrets=SECRETS)
        harness = ServiceHarness(store)
        states = [(await harness.item(f"{one}.0")).state for one in acknowledged]
        audit = await audit_entries(store.conn, store.keys_of_tenant("default"))
        jobs = await harness.jobs()
        await store.close()

    decided = [event.approval for event in audit if event.name == "item.authorized"]
    assert len(acknowledged) >= KILLS_OF_VALKEY
    assert set(states) == {ItemState.AUTHORIZED}
    assert len(decided) == len(set(decided))
    assert jobs == len(decided)
    assert acknowledged <= set(decided)


async def decide_until_killed(
    harness: ServiceHarness, clicks: list[Click], acknowledged: set[str], pid: int
) -> None:
    """Decide all at once; kill the server when a third has been acknowledged."""
    is_killed = False

    async def decide(click: Click) -> None:
        nonlocal is_killed
        try:
            outcome = await harness.reviews.decide(click, Approve(), ANA)
        except StoreUnavailable:
            return
        assert isinstance(outcome, Decided | Stale)
        acknowledged.add(click.approval)
        if not is_killed and len(acknowledged) % (APPROVALS_A_KILL // 3) == 0:
            is_killed = True
            os.kill(pid, signal.SIGKILL)

    await asyncio.gather(*(decide(click) for click in clicks))
    assert is_killed
