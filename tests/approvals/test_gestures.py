"""One gesture decides calls of a batch or of several approvals, or none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import ALREADY_APPROVED, NEEDS_OWN_DECISION
from keyturn.gateway.approvals.decisions import (
    Approve,
    CallNow,
    Changed,
    Click,
    Decision,
    Edit,
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
    Choice,
    Gesture,
    GestureChange,
    Partition,
    decide_gesture,
    index_ranges,
    indexes_in,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, collected, is_collected, item_id
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import ItemState, Person, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    HOUR_MS,
    NOW_MS,
    ONE,
    ONE_SENIOR,
    TWO,
    an_approval,
    an_item,
    changed,
    click_on,
    evaluation,
    pinned,
    reviewer,
    say,
)
from tests.levels import examples

YES, NO = Approve(), Reject(reason="no")
EDIT = Edit(args={"order_id": "55", "amount": 5}, reason="half")
RAISED = evaluation(Tier.ESCALATE, TWO)
Result = GestureChange | GestureRefused | Refusal


def refused(result: Result) -> Mapping[int, Refusal]:
    assert isinstance(result, GestureRefused), result
    return result.refusals


# The calls of one batch.


def a_batch(count: int) -> Approval:
    """Return this many refunds, each of another order."""
    calls: list[JsonObject] = [
        {"order_id": f"{n}", "amount": n + 1} for n in range(count)
    ]
    return an_approval(*(an_item(n, args=args) for n, args in enumerate(calls)))


def seen(approval: Approval) -> Click:
    """Return a click on the batch in its current version."""
    return click_on(approval).with_(action_hash=approval.digest)


def decide_batch(
    approval: Approval,
    partition: Partition,
    *,
    click: Click | None = None,
    now_ms: int = NOW_MS,
    policies: Mapping[int, PolicyDecision] | None = None,
) -> Result:
    return decide_gesture(
        {approval.id: approval},
        Gesture.on_card(approval, click or seen(approval), partition),
        reviewer(ANA),
        now_ms=now_ms,
        calls={
            n: CallNow((policies or {}).get(n) or pinned(approval, n))
            for n in range(len(approval.items))
        },
    )


def approve_all(approval: Approval) -> dict[int, Decision]:
    return {item.index: YES for item in approval.items if item.is_pending}


def test_a_batch_decision_has_one_entry_with_digest_gesture_and_partition() -> None:
    batch = a_batch(56)
    result = decide_batch(batch, {**approve_all(batch), 54: EDIT, 55: NO})

    assert isinstance(result, GestureChange)
    assert not result.events
    [change] = result.changes.values()
    event, *of_calls = change.events
    assert event.name is EventName.APPROVAL_DECIDED
    assert (event.item, event.tool, event.actor) == ("", "process_refund", "T0/U0ANA")
    assert event.action_hash == batch.digest
    assert event.reason == f"{EDIT.reason} · {NO.reason}"
    assert event.data == {
        "gesture": "api",
        "digest": change.approval.digest,
        "approved": "0-53",
        "edited": "54",
        "rejected": "55",
    }
    assert {one.data[BATCH_MEMBER] for one in of_calls} == {batch.digest}
    assert Counter(one.name for one in of_calls) == {
        EventName.ITEM_AUTHORIZED: 55,
        EventName.ITEM_EDITED: 1,
        EventName.ITEM_REJECTED: 1,
    }


def _reordered(batch: Approval) -> Approval:
    first, second, *others = batch.items
    return batch.with_(items=(second.with_(index=0), first.with_(index=1), *others))


def _borrowed(batch: Approval) -> Approval:
    other = an_item(1, args={"order_id": "of another batch", "amount": 1})
    return batch.replacing(other.with_(id="ap_other.1"))


def _swapped(batch: Approval) -> Approval:
    first, second = batch.items[:2]
    return batch.replacing(
        first.with_(action=second.action), second.with_(action=first.action)
    )


MANIPULATED: dict[str, Callable[[Approval], Approval]] = {
    "dropped": lambda batch: batch.with_(items=batch.items[:-1]),
    "inserted": lambda batch: batch.with_(items=(*batch.items, an_item(4))),
    "reordered": _reordered,
    "duplicated": lambda batch: batch.replacing(batch.items[0].with_(index=1)),
    "borrowed": _borrowed,
    "swapped": _swapped,
}


@pytest.mark.parametrize("manipulate", MANIPULATED.values(), ids=MANIPULATED)
def test_a_forged_batch_is_refused(manipulate: Callable[[Approval], Approval]) -> None:
    batch = a_batch(4)
    other = manipulate(batch)
    # With the partition of either batch.
    for partition in (approve_all(batch), approve_all(other)):
        assert isinstance(decide_batch(other, partition, click=seen(batch)), Changed)


@pytest.mark.parametrize("partition", [{}, {0: YES}, {0: YES, 9: NO}])
def test_a_partition_of_other_calls_is_refused(partition: Partition) -> None:
    assert isinstance(decide_batch(a_batch(3), partition), Changed)


def test_one_call_that_may_not_be_decided_stops_the_whole_decision() -> None:
    batch = a_batch(3)
    bad = Edit(args={"order_id": "1", "amount": -1})
    refusals = refused(decide_batch(batch, {**approve_all(batch), 2: bad}))
    assert {n: one.kind for n, one in refusals.items()} == {2: "invalid"}
    # An edit that changes nothing is no way around a decision on the call alone.
    partition = {**approve_all(batch), 1: Edit(args=batch.items[1].args)}
    result = decide_batch(batch, partition, policies={1: evaluation(Tier.ESCALATE)})
    assert refused(result) == {1: NEEDS_OWN_DECISION}


def test_a_batch_that_has_ended_or_is_late_takes_no_decision() -> None:
    batch = a_batch(2)
    ended = (item.with_(state=ItemState.REJECTED) for item in batch.items)
    assert isinstance(decide_batch(batch.replacing(*ended), approve_all(batch)), Stale)
    late = decide_batch(batch, approve_all(batch), now_ms=NOW_MS + HOUR_MS)
    assert late == Expired(expires_at_ms=batch.expires_at_ms)


def test_ranges_name_each_index_once() -> None:
    assert index_ranges([]) == ""
    assert index_ranges([55, 0, 1, 2]) == "0-2,55"
    assert index_ranges([4, 6, 7]) == "4,6-7"


@given(st.sets(st.integers(0, 99)))
def test_ranges_are_read_as_they_were_written(indexes: set[int]) -> None:
    assert indexes_in(index_ranges(indexes)) == sorted(indexes)


# Several approvals are shown as one card, which is bound to exactly these.

CARD = "ap_default_" + "cc" * 16
DIGEST = "sha256:" + "c" * 64


def member(number: int, requirement: Requirement = ONE, **changes: object) -> Approval:
    """Return an approval of a separate thread, with one refund."""
    approval_id = f"ap_default_{number:032x}"
    args: JsonObject = {"order_id": f"{number}", "amount": number + 1}
    item = an_item(args=args, requirement=requirement)
    return an_approval(item.with_(id=item_id(approval_id, 0))).with_(
        id=approval_id, thread=f"t{number}", **changes
    )


def a_collection(count: int, requirement: Requirement = ONE) -> list[Approval]:
    return [member(number, requirement) for number in range(count)]


THREE = a_collection(3)


def test_the_digest_of_a_card_is_that_of_these_calls_in_this_order() -> None:
    card = collected(CARD, THREE)
    one, two, three = THREE
    assert [item.index for item in card.items] == [0, 1, 2]
    for item, shown in zip(card.items, THREE, strict=True):
        assert (item.id, item.action_hash) == (
            shown.items[0].id,
            shown.items[0].action_hash,
        )
    assert is_collected(card)
    assert not any(map(is_collected, THREE))

    other = three.with_(items=(an_item().with_(id=three.items[0].id),))
    cards = [
        *([one, two], [two, one, three], [*THREE, member(4)], [*THREE, one]),
        [one, two, other],
    ]
    digests = {collected(CARD, shown).digest for shown in cards}
    digests |= {card.digest, collected("ap_default_" + "dd" * 16, THREE).digest}
    assert len(digests) == len(cards) + 2


def test_a_later_drawing_is_never_taken_for_an_older_one() -> None:
    before = collected(CARD, THREE)
    moved = collected(CARD, [THREE[0].with_(rev=2), *THREE[1:]])
    left = collected(CARD, THREE[:2], left=1)
    gone = collected(CARD, THREE[:1], left=2)
    revs = [one.rev for one in (before, moved, left, gone)]
    assert revs == sorted({*revs})
    assert before.version <= left.version <= gone.version


def test_a_card_ends_when_the_first_that_waits_does() -> None:
    early, late = NOW_MS + HOUR_MS // 2, NOW_MS + 2 * HOUR_MS
    done = member(2).items[0].with_(state=ItemState.REJECTED)
    ended = member(2, expires_at_ms=early, items=(done,))

    card = collected(CARD, [member(1, expires_at_ms=late), ended, member(3)])

    assert card.expires_at_ms == NOW_MS + HOUR_MS
    assert [one.expires_at_ms for one in card.items] == [late, early, NOW_MS + HOUR_MS]
    assert collected(CARD, [ended]).expires_at_ms == early


def decide_all(
    approvals: Sequence[Approval],
    *decisions: Decision | None,
    clicks: Sequence[Click] = (),
    by: Person | Reviewer = ANA,
    policies: Mapping[int, PolicyDecision] | None = None,
    voters: Mapping[int, Sequence[Reviewer]] | None = None,
    repeats: Sequence[int] = (),
) -> Result:
    clicks = [
        one.with_(is_shared=True) for one in clicks or [click_on(a) for a in approvals]
    ]
    card = Click(approval="col_1", index=0, version=1, action_hash=DIGEST)
    return decide_gesture(
        {one.id: one for one in approvals},
        Gesture(dict(enumerate(map(Choice, clicks, decisions))), card),
        reviewer(by) if isinstance(by, Person) else by,
        now_ms=NOW_MS,
        calls={
            n: CallNow(
                (policies or {}).get(n) or pinned(one),
                (voters or {}).get(n, ()),
                repeats=n in repeats,
            )
            for n, one in enumerate(approvals)
        },
    )


def settled(result: Result) -> tuple[dict[int, Change], GestureDecided, Event]:
    """Return the changes by the place of their call, the outcome and the entry."""
    assert isinstance(result, GestureChange), result
    assert isinstance(result.outcome, GestureDecided)
    [event] = result.events
    changes = {int(one.split("_")[-1], 16): two for one, two in result.changes.items()}
    return changes, result.outcome, event


def test_each_call_becomes_what_a_decision_on_it_alone_makes_of_it() -> None:
    approvals = a_collection(4)
    changes, outcome, _ = settled(decide_all(approvals, YES, NO, None, YES))

    assert {*changes} == {0, 1, 3}
    for number, change in changes.items():
        alone = changed(say(approvals[number], NO if number == 1 else YES))
        assert change.approval == alone.approval
        assert (change.before_ms, change.resumes) == (alone.before_ms, True)
        assert [one.data for one in change.events] == [
            one.data | {BATCH_MEMBER: DIGEST} for one in alone.events
        ]
    after = {one.approval.id: one.approval for one in changes.values()}
    assert outcome == GestureDecided(approvals=after, approved=(0, 3), rejected=(1,))


def test_one_entry_tells_of_the_gesture_with_what_was_shown_and_decided() -> None:
    decisions = [YES] * 53 + [NO, Approve(reason="urgent"), None]
    *_, event = settled(decide_all(a_collection(56), *decisions))

    assert event.name is EventName.CALLS_DECIDED
    assert (event.approval, event.item, event.thread) == ("", "", "")
    assert (event.agent, event.tool) == ("support", "process_refund")
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
    stand_in = reviewer(BEN).with_(stands_in_for=(reviewer(CHLOE), reviewer(ANA)))
    plain, special = member(0), member(1, ONE_SENIOR)
    changes, _, event = settled(decide_all([plain, special], YES, YES, by=stand_in))
    behalf = [one.events[-1].data.get("on_behalf_of") for one in changes.values()]
    assert behalf == [None, "T0/U0CHLOE"]
    assert event.data["on_behalf_of"] == "T0/U0CHLOE"


Move = Callable[[Approval], Approval]
MOVES: dict[Move, type[Refusal]] = {
    lambda approval: approval.with_(version=2): Changed,
    lambda approval: approval.with_(items=(an_item(),)): Changed,
    lambda approval: approval.with_(expires_at_ms=NOW_MS): Expired,
    lambda approval: changed(say(approval, NO, BEN)).approval: Stale,
}


@pytest.mark.parametrize("move", MOVES, ids=["edited", "another", "over", "rejected"])
def test_one_call_that_moved_stops_all_and_is_named(move: Move) -> None:
    approvals = a_collection(3)
    clicks = [click_on(one) for one in approvals]
    approvals[1] = move(approvals[1])

    for decision in (YES, NO):
        refusals = refused(decide_all(approvals, YES, decision, NO, clicks=clicks))
        assert {n: type(why) for n, why in refusals.items()} == {1: MOVES[move]}
    # Without an entry, it stops nothing.
    assert isinstance(
        decide_all(approvals, YES, None, NO, clicks=clicks), GestureChange
    )


@pytest.mark.parametrize(
    ("policies", "repeats"),
    [
        ({1: RAISED, 2: RAISED}, ()),
        ({1: evaluation(Tier.DENY), 2: evaluation(Tier.DENY)}, ()),
        ({}, (1, 2)),
    ],
    ids=["escalated", "denied", "repeated"],
)
def test_what_needs_a_decision_of_its_own_is_left_out_and_can_be_rejected(
    policies: Mapping[int, PolicyDecision], repeats: Sequence[int]
) -> None:
    result = decide_all(THREE, YES, YES, NO, policies=policies, repeats=repeats)
    changes, outcome, event = settled(result)
    assert (outcome.approved, outcome.rejected, outcome.left_out) == ((0,), (2,), (1,))
    assert {*changes} == {0, 2}
    assert event.data["left_out"] == "1"


def test_a_gesture_of_which_everything_is_left_out_is_refused() -> None:
    result = decide_all(THREE[:2], YES, YES, policies={0: RAISED}, repeats=(1,))
    assert result == NEEDS_OWN_DECISION


def test_who_approved_some_of_the_calls_before_approves_the_others() -> None:
    approvals = a_collection(2, TWO)
    first = settled(decide_all(approvals, YES, None))[0][0].approval
    changes, outcome, _ = settled(decide_all([first, approvals[1]], YES, YES))
    again = decide_all([first, changes[1].approval], YES, YES)

    assert (outcome.approved, outcome.already) == ((1,), (0,))
    assert {*changes} == {1}
    assert again == ALREADY_APPROVED


def test_calls_that_need_two_people_wait_and_the_entry_says_so() -> None:
    changes, first, event = settled(decide_all(a_collection(2, TWO), YES, YES))
    after = [one.approval for one in changes.values()]
    known = {0: (reviewer(ANA),), 1: (reviewer(ANA),)}
    _, second, _ = settled(decide_all(after, YES, NO, by=CHLOE, voters=known))

    assert first.waiting == (0, 1)
    assert event.data["waiting"] == "0-1"
    assert not any(one.resumes for one in changes.values())
    assert (second.approved, second.rejected, second.waiting) == ((0,), (1,), ())
    # Voters who are not known any more stop the gesture.
    found = decide_all(after, YES, YES, by=CHLOE, voters={0: known[0]})
    assert {*refused(found)} == {1}


def test_who_asked_for_them_takes_calls_back() -> None:
    _, outcome, event = settled(decide_all(THREE, NO, NO, by=DAN))
    assert (outcome.withdrawn, outcome.rejected) == ((0, 1), ())
    assert event.data["withdrawn"] == "0-1"


def test_a_call_whose_record_is_gone_stops_the_gesture() -> None:
    one, gone = THREE[:2]
    result = decide_all([one], YES, YES, clicks=[click_on(one), click_on(gone)])
    assert refused(result) == {1: Unknown()}


@settings(max_examples=examples(200))
@given(st.data())
def test_all_that_is_decided_is_written_or_nothing(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    approvals = a_collection(count, data.draw(st.sampled_from([ONE, TWO])))
    clicks = [click_on(one) for one in approvals]
    moves: list[Move | None] = [None, None, None, *MOVES]
    moved = [data.draw(st.sampled_from(moves)) for _ in range(count)]
    decisions = [data.draw(st.sampled_from([YES, NO, None])) for _ in range(count)]
    tiers = [data.draw(st.sampled_from([Tier.APPROVE, Tier.ESCALATE])) for _ in moved]
    now = [
        move(one) if move else one for move, one in zip(moved, approvals, strict=True)
    ]

    result = decide_all(
        now,
        *decisions,
        clicks=clicks,
        policies={n: evaluation(tier) for n, tier in enumerate(tiers)},
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
