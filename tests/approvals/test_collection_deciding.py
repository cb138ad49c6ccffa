"""One gesture decides calls of several approvals, or none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import (
    ALREADY_APPROVED,
    NEEDS_OWN_DECISION,
    decide,
)
from keyturn.gateway.approvals.decisions import (
    Approve,
    Changed,
    Click,
    Decision,
    Expired,
    Forbidden,
    GestureDecided,
    GestureRefused,
    Invalid,
    Refusal,
    Reject,
    Reviewer,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import BATCH_MEMBER, Event, EventName
from keyturn.gateway.approvals.gestures import (
    Asked,
    Choice,
    Gesture,
    GestureChange,
    decide_gesture,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, item_id
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    HOUR_MS,
    NOW_MS,
    ONE,
    TWO,
    an_approval,
    an_item,
    click_on,
    reviewer,
)
from tests.levels import examples

DIGEST = "sha256:" + "c" * 64
YES, NO = Approve(), Reject(reason="no")


def a_collection(count: int, requirement: Requirement = ONE) -> list[Approval]:
    """Return approvals of one call each, each of a separate thread."""
    found: list[Approval] = []
    for number in range(count):
        approval_id = f"ap_default_{number:032x}"
        item = an_item(
            args={"order_id": f"{number}", "amount": number + 1},
            requirement=requirement,
        )
        approval = an_approval(item.with_(id=item_id(approval_id, 0)))
        found.append(approval.with_(id=approval_id, thread=f"t{number}"))
    return found


def say(
    approvals: Sequence[Approval],
    *decisions: Decision | None,
    clicks: Sequence[Click] = (),
    by: Reviewer | None = None,
    now_ms: int = NOW_MS,
    policies: Mapping[int, PolicyDecision] | None = None,
    voters: Mapping[int, Sequence[Reviewer]] | None = None,
    repeats: Sequence[int] = (),
) -> GestureChange | GestureRefused | Refusal:
    seen = [
        one.with_(is_shared=True)
        for one in clicks or [click_on(one) for one in approvals]
    ]
    card = Click(approval="col_1", index=0, version=1, action_hash=DIGEST)
    return decide_gesture(
        {one.id: one for one in approvals},
        Gesture(dict(enumerate(map(Choice, seen, decisions))), card),
        by or reviewer(ANA),
        now_ms=now_ms,
        asked=Asked(policies or {}, voters or {}, repeats),
    )


class Settled(NamedTuple):
    """The result of a gesture: changes by the place of their call."""

    changes: dict[int, Change]
    outcome: GestureDecided
    event: Event


def settled(result: object) -> Settled:
    assert isinstance(result, GestureChange), result
    assert isinstance(result.outcome, GestureDecided)
    [event] = result.events
    changes = {int(one.split("_")[-1], 16): two for one, two in result.changes.items()}
    return Settled(changes, result.outcome, event)


def refused(result: object) -> GestureRefused:
    assert isinstance(result, GestureRefused), result
    return result


def _policy(tier: Tier, requirement: Requirement = ONE) -> PolicyDecision:
    return PolicyDecision(tier=tier, requirement=requirement, policy_digest="p")


def test_each_call_becomes_what_a_decision_on_it_alone_makes_of_it() -> None:
    approvals = a_collection(4)

    result = settled(say(approvals, YES, NO, None, YES))

    assert {*result.changes} == {0, 1, 3}
    for number, change in result.changes.items():
        alone = decide(
            approvals[number],
            click_on(approvals[number]),
            NO if number == 1 else YES,
            reviewer(ANA),
            now_ms=NOW_MS,
        )
        assert isinstance(alone, Change)
        assert change.approval == alone.approval
        assert (change.before_ms, change.resumes) == (alone.before_ms, True)
        assert [one.data for one in change.events] == [
            one.data | {BATCH_MEMBER: DIGEST} for one in alone.events
        ]
    after = {one.approval.id: one.approval for one in result.changes.values()}
    assert result.outcome == GestureDecided(
        approvals=after, approved=(0, 3), rejected=(1,)
    )


def test_one_entry_tells_of_the_gesture_with_what_was_shown_and_decided() -> None:
    approvals = a_collection(56)
    decisions = [YES] * 53 + [NO, Approve(reason="urgent"), None]

    event = settled(say(approvals, *decisions)).event

    assert event.name is EventName.CALLS_DECIDED
    assert (event.approval, event.item, event.thread) == ("", "", "")
    assert (event.tenant, event.agent, event.tool) == (
        "default",
        "support",
        "process_refund",
    )
    assert (event.actor, event.action_hash) == ("T0/U0ANA", DIGEST)
    assert (event.reason, event.roles) == ("no · urgent", ("support",))
    assert event.data == {
        "gesture": "api",
        "collection": "col_1",
        "digest": DIGEST,
        "approved": "0-52,54",
        "rejected": "53",
    }


def test_the_entry_says_in_whose_place_each_call_was_decided() -> None:
    senior = Requirement(approvals=1, of=(TWO.of[1],))
    plain, special = a_collection(1)[0], a_collection(2, senior)[1]
    stand_in = reviewer(BEN).with_(stands_in_for=(reviewer(CHLOE), reviewer(ANA)))

    result = settled(say([plain, special], YES, YES, by=stand_in))

    behalf = [
        one.events[-1].data.get("on_behalf_of") for one in result.changes.values()
    ]
    assert behalf == [None, "T0/U0CHLOE"]
    assert result.event.data["on_behalf_of"] == "T0/U0CHLOE"


def _edited(approval: Approval) -> Approval:
    return approval.with_(version=2)


def _another(approval: Approval) -> Approval:
    other = an_item(args={"order_id": "of another call", "amount": 1})
    return approval.with_(items=(other,))


def _over(approval: Approval) -> Approval:
    return approval.with_(expires_at_ms=NOW_MS)


def _rejected(approval: Approval) -> Approval:
    by_ben = decide(approval, click_on(approval), NO, reviewer(BEN), now_ms=NOW_MS)
    assert isinstance(by_ben, Change)
    return by_ben.approval


MOVES: dict[Callable[[Approval], Approval], type[Refusal]] = {
    _edited: Changed,
    _another: Changed,
    _over: Expired,
    _rejected: Stale,
}


@pytest.mark.parametrize("decision", [YES, NO])
@pytest.mark.parametrize("move", MOVES)
def test_one_call_that_moved_stops_all_and_is_named(
    move: Callable[[Approval], Approval], decision: Decision
) -> None:
    approvals = a_collection(3)
    clicks = [click_on(one) for one in approvals]
    approvals[1] = move(approvals[1])

    result = refused(say(approvals, YES, decision, NO, clicks=clicks))

    assert {n: type(why) for n, why in result.refusals.items()} == {1: MOVES[move]}
    # Without an entry, it stops nothing.
    assert settled(say(approvals, YES, None, NO, clicks=clicks))


@pytest.mark.parametrize("tier", [Tier.ESCALATE, Tier.DENY])
def test_what_is_escalated_or_denied_now_is_left_out_and_can_be_rejected(
    tier: Tier,
) -> None:
    approvals = a_collection(3)
    policies = {1: _policy(tier, TWO), 2: _policy(tier, TWO)}

    result = settled(say(approvals, YES, YES, NO, policies=policies))

    assert result.outcome.approved == (0,)
    assert result.outcome.rejected == (2,)
    assert result.outcome.left_out == (1,)
    assert {*result.changes} == {0, 2}
    assert result.event.data["left_out"] == "1"


def test_what_repeats_another_call_is_left_out_and_can_be_rejected() -> None:
    approvals = a_collection(3)

    result = settled(say(approvals, YES, YES, NO, repeats=(1, 2)))

    assert (result.outcome.approved, result.outcome.rejected) == ((0,), (2,))
    assert result.outcome.left_out == (1,)


def test_a_gesture_of_which_everything_is_left_out_is_refused() -> None:
    approvals = a_collection(2)
    policies = {0: _policy(Tier.ESCALATE, TWO)}

    result = say(approvals, YES, YES, policies=policies, repeats=(1,))

    assert result == NEEDS_OWN_DECISION


def test_who_approved_some_of_the_calls_before_approves_the_others() -> None:
    approvals = a_collection(2, TWO)
    first = settled(say(approvals, YES, None)).changes[0].approval

    result = settled(say([first, approvals[1]], YES, YES))
    again = say([first, result.changes[1].approval], YES, YES)

    assert (result.outcome.approved, result.outcome.already) == ((1,), (0,))
    assert {*result.changes} == {1}
    assert again == ALREADY_APPROVED


def test_calls_that_need_two_people_wait_and_the_entry_says_so() -> None:
    approvals = a_collection(2, TWO)

    first = settled(say(approvals, YES, YES))
    after = [one.approval for one in first.changes.values()]
    second = settled(
        say(
            after,
            YES,
            NO,
            by=reviewer(CHLOE),
            voters={0: (reviewer(ANA),), 1: (reviewer(ANA),)},
        )
    )

    assert (first.outcome.waiting, first.outcome.needs_one) == ((0, 1), True)
    assert (first.event.data["waiting"], first.event.data["needs_one"]) == (
        "0-1",
        "yes",
    )
    assert not any(one.resumes for one in first.changes.values())
    assert (second.outcome.approved, second.outcome.rejected) == ((0,), (1,))
    assert second.outcome.waiting == ()


def test_voters_who_are_not_known_any_more_stop_the_gesture() -> None:
    approvals = a_collection(2, TWO)
    after = [one.approval for one in settled(say(approvals, YES, YES)).changes.values()]

    known = {0: (reviewer(ANA),)}

    found = say(after, YES, YES, by=reviewer(CHLOE), voters=known)

    assert {*refused(found).refusals} == {1}


def test_who_asked_for_them_takes_calls_back() -> None:
    result = settled(say(a_collection(2), NO, NO, by=reviewer(DAN)))

    assert (result.outcome.withdrawn, result.outcome.rejected) == ((0, 1), ())
    assert result.event.data["withdrawn"] == "0-1"


@settings(max_examples=examples(200))
@given(st.data())
def test_all_that_is_decided_is_written_or_nothing(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    approvals = a_collection(count, data.draw(st.sampled_from([ONE, TWO])))
    clicks = [click_on(one) for one in approvals]
    moves = [None, None, None, *MOVES]
    moved = [data.draw(st.sampled_from(moves)) for _ in range(count)]
    decisions = [data.draw(st.sampled_from([YES, NO, None])) for _ in range(count)]
    tiers = [data.draw(st.sampled_from([Tier.APPROVE, Tier.ESCALATE])) for _ in moved]
    now = [
        move(one) if move else one for move, one in zip(moved, approvals, strict=True)
    ]

    result = say(
        now,
        *decisions,
        clicks=clicks,
        policies={n: _policy(tier) for n, tier in enumerate(tiers)},
        repeats=data.draw(st.lists(st.integers(0, count - 1))),
    )

    chosen = {n for n, decision in enumerate(decisions) if decision is not None}
    stopping = {n for n in chosen if moved[n]}
    if isinstance(result, GestureRefused):
        assert {*result.refusals} == stopping
    elif isinstance(result, Invalid):
        assert not chosen
    elif isinstance(result, Forbidden):
        assert chosen
    else:
        changes, outcome, _ = settled(result)
        assert not stopping
        assert {*outcome.approved, *outcome.rejected} == {*changes}
        assert {*changes} | {*outcome.left_out} == chosen
        assert not {*changes} & {*outcome.left_out}
        states = {n: one.approval.items[0].state for n, one in changes.items()}
        assert {n for n, state in states.items() if state is ItemState.REJECTED} == {
            *outcome.rejected
        }
        assert all(one.before_ms == NOW_MS + HOUR_MS for one in changes.values())


def test_a_call_whose_record_is_gone_stops_the_gesture() -> None:
    one, gone = a_collection(2)

    result = refused(say([one], YES, YES, clicks=[click_on(one), click_on(gone)]))

    assert result.refusals == {1: Unknown()}
