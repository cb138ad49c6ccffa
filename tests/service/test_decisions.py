"""A decision is written once, with its event, its audit entry and its job."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from keyturn.gateway.approvals.deciding import NEEDS_OWN_DECISION
from keyturn.gateway.approvals.decisions import (
    Approve,
    Changed,
    Click,
    Decided,
    Decision,
    Edit,
    Expired,
    Forbidden,
    GestureDecided,
    GestureOutcome,
    GestureRefused,
    Reject,
    Reviewer,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.gestures import Choice, Gesture
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Claimed,
    ProposedCall,
    Reopened,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, ServiceHarness, claim_of, still_members
from tests.service.windowed import refund, refunded, windowed, windowed_policy


async def test_two_calls_with_one_id_are_both_denied(harness: ServiceHarness) -> None:
    ref, _ = await harness.submit(("look_up_order", {}))
    twin = ProposedCall(tool="process_refund", args={"amount": 1}, tool_call_id="c0")
    other = twin.with_(tool_call_id="c1")
    turn = Turn(ref=ref.with_(message_id="twins"), calls=(twin, other, twin))

    verdicts = await harness.agents.submit(turn)

    assert [verdict.kind for verdict in verdicts] == ["deny", "hold", "deny"]
    assert "share the id 'c0'" in verdicts[0].reason


async def test_state_event_audit_and_job_are_one_step(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()

    outcome = await harness.reviews.decide(click, Approve(), ANA)

    audit = await harness.audited()
    assert isinstance(outcome, Decided)
    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED
    assert audit[-1].name is EventName.ITEM_AUTHORIZED
    assert audit[-1].actor == "T0/U0ANA"
    assert await harness.jobs() == 1


async def test_a_quick_approval_of_an_escalated_call_is_asked_for_again(
    harness: ServiceHarness,
) -> None:
    harness.put_policy(("with_senior}", "with_senior, ask_again_within: 10m}"))
    _, verdicts = await harness.submit(("wire_money", {}), ("process_refund", {}))

    outcomes = [await harness.decide(one, Approve(), BEN) for one in verdicts]

    assert [one.kind for one in outcomes] == ["toosoon", "decided"]
    metrics = await StatisticsService(harness.store).metrics()
    assert metrics.tools["wire_money"].too_soon == 1


async def test_the_stores_clock_expires_a_late_click(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    await harness.overdue(click.approval)

    outcome = await harness.reviews.decide(click, Approve(), ANA)

    assert isinstance(outcome, Expired)
    assert (await harness.item(claim.item_id)).state is ItemState.EXPIRED
    assert await harness.jobs() == 1


async def test_sweepers_on_every_replica_expire_once(harness: ServiceHarness) -> None:
    clicks = [(await harness.refund(thread=f"t{n}"))[0] for n in range(20)]
    for click in clicks:
        await harness.overdue(click.approval)

    ended = await asyncio.gather(*(harness.sweeper.sweep() for _ in range(4)))

    assert sum(ended) == 20
    assert await harness.jobs() == 20
    assert await harness.sweeper.sweep() == 0


@pytest.mark.parametrize(
    "approval",
    ["", "ap_default_nothex", "ap_default_" + "0" * 32, "ap_another_" + "0" * 32, "é"],
)
async def test_an_unknown_id_is_unknown(harness: ServiceHarness, approval: str) -> None:
    click, _ = await harness.refund()

    outcome = await harness.reviews.decide(
        click.with_(approval=approval), Approve(), ANA
    )

    assert isinstance(outcome, Unknown)


@pytest.mark.parametrize(("amount", "waiting"), [(150, ()), (300, (0, 1))])
async def test_the_edits_of_one_batch_decision_are_added_up(
    store: Store, amount: int, waiting: tuple[int, ...]
) -> None:
    harness = windowed(store)
    _, verdicts = await harness.submit(*[refund(100)] * 7)
    approval = await harness.approval(verdicts[0].item_id)
    edit = Edit(args=refund(amount)[1])
    partition: dict[int, Decision | None] = dict.fromkeys(range(7))

    outcome = await harness.decide_card(approval, {**partition, 0: edit, 1: edit})

    assert isinstance(outcome, GestureDecided)
    assert (outcome.edited, outcome.waiting) == ((0, 1), waiting)


DIGEST = "sha256:" + "d" * 64
NO = Reject(reason="no")
YES = Approve()
PENDING, AUTHORIZED = ItemState.PENDING, ItemState.AUTHORIZED
REJECTED = ItemState.REJECTED
TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
FIRST = "process_refund: {tier: approve}"
NAMED = "process_refund: {tier: approve, same_by: args.order}"
TWO = ("requirements:\n", "requirements:\n  two: {of: [support], approvals: 2}\n")
ASKS = """process_refund:
    tier: approve
    same_by: args.order
    raise:
      - {to: escalate, when: recent.same_done_24h > 0, because: it ran today}"""
COUNTS = ASKS.replace("    same_by: args.order\n", "")
NEEDS = ASKS.replace("{to: escalate,", "{needs: two,")

THREADS = itertools.count()

Asked = tuple[TurnRef, Verdict]
Move = Callable[[ServiceHarness, Verdict], Awaitable[None]]


async def ask(
    harness: ServiceHarness, *calls: tuple[str, JsonObject], agent: str = "support"
) -> list[Asked]:
    """Request each call in a separate thread."""
    found: list[Asked] = []
    for call in calls:
        ref, (verdict,) = await harness.submit(
            call, thread=f"t{next(THREADS)}", agent=agent
        )
        found.append((ref, verdict))
    return found


async def refunds(harness: ServiceHarness, count: int) -> list[Asked]:
    return await ask(harness, *(refund(number + 1) for number in range(count)))


async def orders(
    harness: ServiceHarness, *names: str, agent: str = "support"
) -> list[Asked]:
    """Ask for a refund of each order."""
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"order": name}) for name in names
    ]
    return await ask(harness, *calls, agent=agent)


async def clicks_on(harness: ServiceHarness, asked: Sequence[Asked]) -> list[Click]:
    return [await harness.click(verdict) for _, verdict in asked]


async def say(
    harness: ServiceHarness,
    clicks: Sequence[Click],
    *decisions: Decision | None,
    by: Reviewer = ANA,
) -> GestureOutcome:
    """Decide, by one gesture, calls that a collected card showed."""
    card = Click(approval="col_1", index=0, version=1, action_hash=DIGEST)
    seen = [one.with_(is_shared=True) for one in clicks]
    gesture = Gesture(dict(enumerate(map(Choice, seen, decisions))), card)
    return await harness.reviews.decide_gesture(gesture, by, voters=still_members)


async def states(harness: ServiceHarness, asked: Sequence[Asked]) -> list[ItemState]:
    return [(await harness.item(verdict.item_id)).state for _, verdict in asked]


async def told(harness: ServiceHarness) -> list[Event]:
    entries = await harness.audited()
    return [one for one in entries if one.name is not EventName.APPROVAL_OPENED]


def done(outcome: GestureOutcome) -> GestureDecided:
    assert isinstance(outcome, GestureDecided), outcome
    return outcome


def refused(outcome: GestureOutcome) -> GestureRefused:
    assert isinstance(outcome, GestureRefused), outcome
    return outcome


async def test_each_call_gets_its_decision_and_answer(harness: ServiceHarness) -> None:
    asked = await refunds(harness, 4)
    clicks = await clicks_on(harness, asked)

    outcome = done(await say(harness, clicks, YES, NO, None, YES))

    assert (outcome.approved, outcome.rejected) == ((0, 3), (1,))
    assert await states(harness, asked) == [AUTHORIZED, REJECTED, PENDING, AUTHORIZED]
    assert [*outcome.approvals] == [clicks[n].approval for n in (0, 1, 3)]
    for approval_id, after in outcome.approvals.items():
        assert after == await harness.approval(f"{approval_id}.0")
    assert await harness.jobs() == 3
    assert isinstance(await harness.agents.claim(claim_of(*asked[3])), Claimed)


async def decided(harness: ServiceHarness, verdict: Verdict) -> None:
    await harness.decide(verdict, YES, BEN)


async def expired(harness: ServiceHarness, verdict: Verdict) -> None:
    await harness.overdue((await harness.approval(verdict.item_id)).id)


async def is_frozen(harness: ServiceHarness, _: Verdict) -> None:
    await harness.reviews.freezes.freeze(TOOL, "T0/U0BEN", "stop")


async def lost_its_reviewer(harness: ServiceHarness, _: Verdict) -> None:
    harness.put_policy(("[U0ANA, U0BEN, U0DAN]", "[U0BEN, U0DAN]"))


@pytest.mark.parametrize(
    ("move", "refusal", "left"),
    [(decided, Stale, AUTHORIZED), (expired, Expired, ItemState.EXPIRED)],
)
async def test_one_call_that_moved_keeps_all_from_being_decided(
    harness: ServiceHarness, move: Move, refusal: type[object], left: ItemState
) -> None:
    asked = await refunds(harness, 3)
    clicks = await clicks_on(harness, asked)
    await move(harness, asked[1][1])
    before = len(await told(harness))

    outcome = refused(await say(harness, clicks, YES, YES, NO))

    assert {n: type(why) for n, why in outcome.refusals.items()} == {1: refusal}
    # A late call is ended now, so that its card shows it.
    assert await states(harness, asked) == [PENDING, left, PENDING]
    assert EventName.CALLS_DECIDED not in {one.name for one in await told(harness)}
    assert len(await told(harness)) - before == (refusal is Expired)


@pytest.mark.parametrize("move", [is_frozen, lost_its_reviewer])
async def test_who_may_not_approve_one_of_them_approves_none(
    harness: ServiceHarness, move: Move
) -> None:
    asked = await refunds(harness, 2)
    clicks = await clicks_on(harness, asked)
    await move(harness, asked[0][1])

    outcome = refused(await say(harness, clicks, YES, YES))

    assert {*map(type, outcome.refusals.values())} == {Forbidden}
    tried = await harness.audited(EventName.DECISION_REFUSED)
    assert len(tried) == len(outcome.refusals)
    assert {one.reason for one in tried} <= {
        refusal.reason
        for refusal in outcome.refusals.values()
        if isinstance(refusal, Forbidden)
    }
    assert {*outcome.refusals} == {0, 1}
    assert await states(harness, asked) == [PENDING] * 2


@pytest.mark.parametrize(
    ("tool", "left_out"), [(ASKS, (2,)), (COUNTS, (2,)), (NAMED, (2,)), (FIRST, ())]
)
async def test_a_call_that_repeats_another_of_the_gesture_is_left_out(
    harness: ServiceHarness, tool: str, left_out: tuple[int, ...]
) -> None:
    harness.put_policy((FIRST, tool))
    asked = await orders(harness, "7", "8", "7")
    clicks = await clicks_on(harness, asked)

    outcome = done(await say(harness, clicks, YES, YES, YES))

    assert outcome.left_out == left_out
    waits = PENDING if left_out else AUTHORIZED
    assert await states(harness, asked) == [AUTHORIZED, AUTHORIZED, waits]
    # The same again after a view of it, by a separate gesture.
    if left_out:
        approval = await harness.approval(asked[2][1].item_id)
        assert approval.version == 1


@pytest.mark.parametrize(
    ("tool", "left_out"),
    # More people, and the same tier; in one batch, its card shows that they repeat.
    [(ASKS, (2,)), (NEEDS, (2,)), (NAMED, ()), (FIRST, ())],
)
async def test_of_a_batch_a_call_is_left_out_where_a_rule_asks_for_more(
    harness: ServiceHarness, tool: str, left_out: tuple[int, ...]
) -> None:
    harness.put_policy((FIRST, tool), TWO)
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"order": order, "amount": n})
        for n, order in enumerate(["7", "8", "7"])
    ]
    _, (first, *_) = await harness.submit(*calls)
    approval = await harness.approval(first.item_id)

    outcome = done(await harness.decide_card(approval, dict.fromkeys(range(3), YES)))

    assert outcome.left_out == left_out
    after = await harness.approval(first.item_id)
    assert tuple(item.index for item in after.items if item.is_pending) == left_out


async def test_a_call_done_elsewhere_is_shown_first(harness: ServiceHarness) -> None:
    harness.put_policy((FIRST, NAMED))
    asked = await orders(harness, "7", "8")
    clicks = await clicks_on(harness, asked)
    ((_, again),) = await orders(harness, "7", agent="b")
    await decided(harness, again)

    outcome = done(await say(harness, clicks, YES, YES))

    assert (outcome.approved, outcome.left_out) == ((1,), (0,))
    assert outcome.approvals[clicks[0].approval].version == 2
    assert await states(harness, asked) == [PENDING, AUTHORIZED]
    later = await clicks_on(harness, asked[:1])
    assert done(await say(harness, later, YES)).approved == (0,)


async def test_calls_beyond_a_window_are_decided_apart(harness: ServiceHarness) -> None:
    # Opened by a policy without windows: nothing is reserved.
    asked = await ask(harness, refund(600), refund(300), refund(200), refund(50))
    clicks = await clicks_on(harness, asked)
    harness.policy = windowed_policy()

    refused = await say(harness, clicks, YES, YES, YES, YES)
    outcome = done(await say(harness, clicks, YES, YES, None, YES))

    assert refused == NEEDS_OWN_DECISION
    assert (outcome.approved, outcome.left_out) == ((0, 1, 3), ())
    assert await refunded(harness) == 950


@pytest.mark.parametrize(("amount", "left_out"), [(200, ()), (201, (2,))])
async def test_a_call_is_added_up_with_what_is_edited_before_it(
    store: Store, amount: int, left_out: tuple[int, ...]
) -> None:
    harness = ServiceHarness(store, windowed_policy())
    asked = await ask(harness, refund(500), refund(1, "c8"), refund(300))
    clicks = await clicks_on(harness, asked)
    moved = Edit(args={"amount": amount, "customer": "c7"})

    outcome = done(await say(harness, clicks, None, moved, YES))

    assert (outcome.edited, outcome.left_out) == ((1,), left_out)


async def test_a_call_reopened_since_is_not_decided(harness: ServiceHarness) -> None:
    asked = await refunds(harness, 2)
    clicks = await clicks_on(harness, asked)
    listed = await harness.reviews.list_together([one.approval for one in clicks])
    assert listed
    shown = listed.approval
    await decided(harness, asked[1][1])
    harness.put_policy(("[U0ANA, U0BEN, U0DAN]", "[U0ANA, U0DAN]"))
    assert isinstance(await harness.agents.claim(claim_of(*asked[1])), Reopened)
    click = Click(approval="", index=0, version=shown.version, action_hash=shown.digest)

    outcome = await harness.reviews.decide_card(shown, click, {0: YES, 1: YES}, ANA)

    assert outcome == Changed(seen_version=1, version=2)
    assert await states(harness, asked) == [PENDING, PENDING]
