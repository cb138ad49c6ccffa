"""One table defines the allowed transitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.ending import (
    RESTORED,
    THREAD_LOST,
    doubt_restored,
    end_with_thread,
    end_without_reviewers,
)
from keyturn.gateway.approvals.executing import finish, shorten_claim
from keyturn.gateway.approvals.lifecycle import (
    FINAL,
    TRANSITIONS,
    Transition,
    advance,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.errors import IllegalTransition
from keyturn.gateway.protocol.records import ItemState, Result
from tests.approvals.builders import (
    ANA,
    HOUR_MS,
    NOW_MS,
    an_approval,
    an_item,
    changed,
    left,
)

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


@pytest.mark.parametrize(
    ("state", "transition"), list(itertools.product(ItemState, Transition)), ids=str
)
def test_only_table_rows_can_happen(state: ItemState, transition: Transition) -> None:
    if (state, transition) in TRANSITIONS:
        assert advance(state, transition) is TRANSITIONS[state, transition]
    else:
        with pytest.raises(IllegalTransition):
            advance(state, transition)


def test_nothing_executes_that_was_not_authorized() -> None:
    before_executing = {
        before for (before, _), after in TRANSITIONS.items() if after == "executing"
    }

    # What executes was authorized; another attempt may take over from a dead one.
    assert before_executing == {ItemState.AUTHORIZED, ItemState.EXECUTING}


def test_what_another_program_runs_never_counts_as_run_failed_or_in_doubt() -> None:
    reached, steps = {ItemState.HANDING_OVER}, len(ItemState)
    for _ in range(steps):
        reached |= {
            after
            for (before, _), after in TRANSITIONS.items()
            # A claim of such a call hands it over, and a doubt ends it.
            if before in reached and before is not ItemState.AUTHORIZED
        }

    assert reached == {
        ItemState.HANDING_OVER,
        ItemState.AUTHORIZED,
        ItemState.HANDED_OVER,
        ItemState.NOT_TAKEN,
        ItemState.WITHDRAWN,
        ItemState.LAPSED,
    }


def test_authorization_comes_from_a_decision_or_from_giving_a_claim_back() -> None:
    into = {
        (before, transition) for (before, transition), after in TRANSITIONS.items()
        if after is ItemState.AUTHORIZED
    }  # fmt: skip

    assert into == {
        (ItemState.PENDING, Transition.AUTHORIZE),
        (ItemState.PENDING, Transition.CLEAR),
        (ItemState.EXECUTING, Transition.RELEASE),
        (ItemState.IN_DOUBT, Transition.RETRY),
        (ItemState.HANDING_OVER, Transition.RELEASE),
    }


def test_every_state_reaches_an_end() -> None:
    for start in ItemState:
        reached = {start}
        for _ in ItemState:
            reached |= {after for (b, _), after in TRANSITIONS.items() if b in reached}
        assert reached & FINAL


def test_the_diagram_of_the_architecture_is_printed_from_the_table() -> None:
    rows = ["stateDiagram-v2", "    [*] --> pending"]
    rows += [
        f"    {before} --> {after}: {transition}"
        for (before, transition), after in TRANSITIONS.items()
    ]
    ends = FINAL | {ItemState.FAILED}
    rows += [f"    {state} --> [*]" for state in ItemState if state in ends]

    assert "\n".join(rows) in ARCHITECTURE.read_text(encoding="utf-8")


# A claim lasts as long as its lease, and its result is recorded once.

LEASE_MS = 60_000
RAN, FAILED = Result(ok=True), Result(ok=False)


def executing(**more: object) -> tuple[Approval, Item]:
    item = an_item().with_(state=ItemState.EXECUTING, fence=2, owner="w1", **more)
    return an_approval(item), item


def test_a_claim_that_a_clock_made_too_long_is_cut_to_its_lease() -> None:
    long = executing(claimed_until_ms=NOW_MS + LEASE_MS + 1)
    right = executing(claimed_until_ms=NOW_MS + LEASE_MS)

    cut = shorten_claim(*long, lease_ms=LEASE_MS, now_ms=NOW_MS)

    assert cut is not None
    assert cut.approval.items[0].claimed_until_ms == NOW_MS + LEASE_MS
    assert cut.approval.rev == long[0].rev + 1
    assert shorten_claim(*right, lease_ms=LEASE_MS, now_ms=NOW_MS) is None


@pytest.mark.parametrize("result", [RAN, FAILED, None])
def test_the_same_report_again_was_recorded_before(result: Result | None) -> None:
    first = finish(*executing(), 2, result, now_ms=NOW_MS)
    assert isinstance(first, Change)
    after = first.approval

    assert finish(after, after.items[0], 2, result, now_ms=NOW_MS) is True
    assert finish(after, after.items[0], 1, result, now_ms=NOW_MS) is False
    assert not after.items[0].is_contradicted


# After a loss or a restored copy, no call runs by an incomplete record.

UNTOUCHED = sorted(set(ItemState) - {ItemState.PENDING, ItemState.AUTHORIZED})
LATE_MS = NOW_MS + HOUR_MS


def of_state(state: ItemState, **more: object) -> Approval:
    return an_approval(an_item().with_(state=state, **more))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ItemState.PENDING, ItemState.WITHDRAWN),
        (ItemState.AUTHORIZED, ItemState.LAPSED),
    ],
)
def test_an_unstarted_call_ends_early(before: ItemState, after: ItemState) -> None:
    approval = of_state(before)
    item = left(end_with_thread(approval, approval.items[0], NOW_MS))
    assert (item.state, item.changed_at_ms) == (after, NOW_MS)
    assert item.revoked is not None
    assert (item.revoked.reason, item.revoked.is_final) == (THREAD_LOST, True)


@pytest.mark.parametrize("state", UNTOUCHED)
def test_a_call_that_began_or_ended_is_left_alone(state: ItemState) -> None:
    approval = of_state(state)
    assert end_with_thread(approval, approval.items[0], NOW_MS) is None
    assert doubt_restored(approval, approval.items[0], NOW_MS) is None


@pytest.mark.parametrize("state", ItemState)
def test_without_reviewers_only_what_waits_for_them_ends(state: ItemState) -> None:
    waiting = an_item().with_(state=ItemState.PENDING)
    other = an_item(1).with_(state=state)
    change = end_without_reviewers(an_approval(waiting, other), NOW_MS)

    assert change is not None
    assert change.resumes
    first, second = change.approval.items
    assert first.state is ItemState.WITHDRAWN
    is_waiting = state is ItemState.PENDING
    assert second.state is (ItemState.WITHDRAWN if is_waiting else state)
    assert end_without_reviewers(change.approval, NOW_MS) is None


def test_without_reviewers_an_overdue_call_is_left_to_the_sweep() -> None:
    assert end_without_reviewers(of_state(ItemState.PENDING), LATE_MS) is None


@pytest.mark.parametrize(
    ("before", "now_ms", "after"),
    [
        # It runs nothing, and is for people.
        (ItemState.AUTHORIZED, NOW_MS, ItemState.IN_DOUBT),
        # It is asked anew, once.
        (ItemState.PENDING, NOW_MS, ItemState.PENDING),
        (ItemState.PENDING, LATE_MS, ItemState.EXPIRED),
    ],
)
def test_a_call_of_an_older_copy_may_have_run(
    before: ItemState, now_ms: int, after: ItemState
) -> None:
    vote = Vote(by=ANA, roles=("support",), action_hash="h", at_ms=1)
    approval = of_state(before, votes=(vote,))

    change = changed(doubt_restored(approval, approval.items[0], now_ms))

    [item] = change.approval.items
    assert (item.state, item.is_restored) == (after, True)
    if after is ItemState.IN_DOUBT:
        assert item.revoked is not None
        assert (item.revoked.reason, item.revoked.is_final) == (RESTORED, False)
    if after is ItemState.PENDING:
        assert (item.votes, change.approval.version) == ((), approval.version + 1)
        assert doubt_restored(change.approval, item, now_ms) is None
