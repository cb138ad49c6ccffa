"""The checker on histories whose verdict is known, and on all that are small.

A history is written as rows: called, returned (None: open), name, given, output.
"""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.levels import examples
from tests.linearizability.approval_model import ApprovalModel, State, answered
from tests.linearizability.checker import violation, violations
from tests.linearizability.history import NEVER, Operation, Value

Row: TypeAlias = tuple[int, int | None, str, tuple[Value, ...], Value]

ASKED: Row = (0, 1, "submit", (7,), "i")
APPROVE = ("ana", "approve", 1, 0)
REJECT = ("ben", "reject", 1, 0)
BY_ANA, BY_BEN = ("ana", "approve"), ("ben", "reject")
APPROVED: Row = (2, 3, "decide", APPROVE, "decided")
STARTED: Row = (4, 5, "claim", ("w1",), ("claimed", 1, 7))
LATE: Row = (2, None, "late", (), None)
UNDECIDED = ("pending", 1, 7, (), (), 0, "")
READY = ("authorized", 1, 7, ("ana",), BY_ANA, 0, "")
RUNNING = ("executing", 1, 7, ("ana",), BY_ANA, 1, "")
ENDED = ("executed", 1, 7, ("ana",), BY_ANA, 1, "r")


def history(*rows: Row, key: str = "1") -> list[Operation]:
    return [
        Operation(key, name, given, at, NEVER if end is None else end, output)
        for at, end, name, given, output in rows
    ]


def is_linearizable(*rows: Row, key: str = "1") -> bool:
    return violation(history(*rows, key=key), ApprovalModel()) is None


LINEARIZABLE: dict[str, list[Row]] = {
    "nothing happened": [],
    "one after the other": [ASKED, APPROVED, STARTED,
        (6, 7, "finish", (1, "r"), True), (8, 9, "read", (), ENDED)],
    "of two decisions at once the later call won": [ASKED,
        (2, 9, "decide", APPROVE, ("refused", "rejected", BY_BEN)),
        (3, 8, "decide", REJECT, "decided")],
    "a reader at once with the decision saw it, the next one not": [ASKED,
        (2, 9, "decide", APPROVE, "decided"), (3, 8, "read", (), READY),
        (4, 7, "read", (), UNDECIDED)],
    "an open decision took effect": [ASKED,
        (2, None, "decide", APPROVE, None), (3, 4, "read", (), READY)],
    "an open decision took effect long after": [ASKED,
        (2, None, "decide", APPROVE, None), (3, 4, "read", (), UNDECIDED),
        (5, 6, "read", (), UNDECIDED), (7, 8, "read", (), READY)],
    "an open decision never took effect": [ASKED,
        (2, None, "decide", APPROVE, None), (3, 4, "read", (), UNDECIDED),
        (5, 6, "decide", REJECT, "decided")],
    "an open claim took effect": [ASKED, APPROVED,
        (4, None, "claim", ("w1",), None), (6, 7, "claim", ("w2",), "busy")],
    "a lost answer to a turn, and the turn again": [
        (0, None, "submit", (7,), None), (2, 3, "submit", (7,), "i"),
        (4, 5, "submit", (7,), "i")],
    "an owner fell silent": [ASKED, APPROVED, STARTED,
        (6, None, "owner_lost", ("w1",), None), (8, 9, "claim", ("w2",), "in_doubt"),
        (10, 11, "finish", (1, "r"), True)],
    "a claim was given back and taken again": [ASKED, APPROVED, STARTED,
        (6, 7, "release", (1,), None),
        (8, 9, "claim", ("w2",), ("claimed", 2, 7)),
        (10, 11, "finish", (1, "r"), False)],
    "an authorization was withdrawn": [ASKED, APPROVED,
        (4, 5, "withdraw", (), None),
        (6, 7, "claim", ("w1",), ("refused", "withdrawn"))],
    "a waiting call was withdrawn": [ASKED,
        (4, 5, "withdraw", (), None),
        (6, 7, "decide", APPROVE, ("refused", "withdrawn", ()))],
    "time was over": [ASKED, LATE,
        (3, 4, "decide", APPROVE, ("refused", "expired", ())),
        (5, 6, "read", (), UNDECIDED), (5, None, "expire", (), None),
        (7, 8, "read", (), ("expired", *UNDECIDED[1:]))],
    "time was over, and then it was withdrawn": [ASKED, LATE,
        (3, 4, "decide", APPROVE, ("refused", "expired", ())),
        (5, 6, "withdraw", (), None),
        (7, 8, "decide", APPROVE, ("refused", "withdrawn", ()))],
    "the claim of an edit runs the edit": [ASKED,
        (2, 3, "decide", ("ana", "edit", 1, 9), "decided"),
        (4, 5, "claim", ("w1",), ("claimed", 1, 9))],
}  # fmt: skip

BROKEN: dict[str, list[Row]] = {
    "a stale read": [ASKED, APPROVED, (4, 5, "read", (), UNDECIDED)],
    "a read that goes back": [ASKED, (2, None, "decide", APPROVE, None),
        (3, 4, "read", (), READY), (5, 6, "read", (), UNDECIDED)],
    "an acknowledged decision is lost": [ASKED, APPROVED,
        (4, 5, "decide", REJECT, "decided")],
    "two winners at once": [ASKED, (2, 9, "decide", APPROVE, "decided"),
        (3, 8, "decide", REJECT, "decided")],
    "a decision for a version that was gone": [ASKED,
        (2, 3, "decide", ("ana", "edit", 1, 9), "decided"),
        (4, 5, "decide", APPROVE, "decided")],
    "two claims at once": [ASKED, APPROVED, (4, 9, "claim", ("w1",), ("claimed", 1, 7)),
        (5, 8, "claim", ("w2",), ("claimed", 1, 7))],
    "two claims, one after the other": [ASKED, APPROVED, STARTED,
        (6, 7, "claim", ("w2",), ("claimed", 2, 7))],
    "a claim before the decision": [ASKED,
        (2, 3, "claim", ("w1",), ("claimed", 1, 7)),
        (4, 5, "decide", APPROVE, "decided")],
    "a claim of what was rejected": [ASKED,
        (2, 3, "decide", REJECT, "decided"), STARTED],
    "a claim of other arguments": [ASKED,
        (2, 3, "decide", ("ana", "edit", 1, 9), "decided"), STARTED],
    "a finish under an older fence": [ASKED, APPROVED, STARTED,
        (6, 7, "release", (1,), None), (8, 9, "claim", ("w2",), ("claimed", 2, 7)),
        (10, 11, "finish", (1, "r"), True)],
    "a result that another one replaces": [ASKED, APPROVED, STARTED,
        (6, 7, "finish", (1, "r"), True), (8, 9, "read", (), (*ENDED[:-1], "other"))],
    "a result that is lost": [ASKED, APPROVED, STARTED,
        (6, 7, "finish", (1, "r"), True), (8, 9, "read", (), RUNNING)],
    "two approvals of one turn": [ASKED, (2, 3, "submit", (7,), "other")],
    "an open operation that took effect before its call": [ASKED,
        (2, 3, "read", (), READY), (4, None, "decide", APPROVE, None)],
    "an open decision that took effect twice": [ASKED,
        (2, None, "decide", ("ana", "edit", 1, 9), None),
        (3, 4, "read", (), ("authorized", 3, 9, ("ana",), ("ana", "edit"), 0, ""))],
    "a refusal by a winner that nobody was": [ASKED,
        (2, 3, "decide", APPROVE, ("refused", "rejected", BY_BEN))],
    "a decision behind the end": [ASKED, (2, 3, "withdraw", (), None),
        (4, 5, "decide", APPROVE, "decided")],
    "time was over too soon": [ASKED,
        (2, 3, "decide", APPROVE, ("refused", "expired", ())),
        (9, None, "late", (), None)],
    "a decision behind a refusal for its time": [ASKED, LATE,
        (3, 4, "decide", REJECT, ("refused", "expired", ())),
        (5, 6, "decide", APPROVE, "decided")],
    "an owner that fell silent too soon": [ASKED, APPROVED, STARTED,
        (6, 7, "claim", ("w2",), "in_doubt"), (9, None, "owner_lost", ("w1",), None)],
}  # fmt: skip


@pytest.mark.parametrize("rows", LINEARIZABLE.values(), ids=LINEARIZABLE)
def test_a_history_that_has_an_order_passes(rows: list[Row]) -> None:
    assert is_linearizable(*rows)


@pytest.mark.parametrize("rows", BROKEN.values(), ids=BROKEN)
def test_a_history_without_an_order_is_found(rows: list[Row]) -> None:
    assert not is_linearizable(*rows)


def test_of_two_people_one_does_not_suffice() -> None:
    one = (2, 3, "decide", APPROVE, "voted")
    again = (4, 5, "decide", APPROVE, ("refused", "voted"))
    other = (6, 7, "decide", ("ben", "approve", 1, 0), "decided")

    assert is_linearizable(ASKED, one, again, other, key="2")
    assert not is_linearizable(ASKED, one, STARTED, key="2")
    assert not is_linearizable(ASKED, APPROVED, key="2")


HANDED = "1h-1"
TAKEN, MISSED = (1, True), (1, False)
SILENT: Row = (6, None, "owner_lost", ("w1",), None)


def test_a_hand_over_leaves_no_doubt_and_has_one_end() -> None:
    """An ended claim may be made again; an end counts under its fence, once."""
    asked = (ASKED, APPROVED, STARTED)
    again: Row = (8, 9, "claim", ("w2",), ("claimed", 2, 7))
    late: Row = (10, 11, "hand_over", TAKEN, False)
    end: Row = (6, 7, "hand_over", TAKEN, True)
    told: Row = (10, 11, "claim", ("w2",), ("handed_over", True))

    assert is_linearizable(*asked, SILENT, again, late, key=HANDED)
    assert is_linearizable(*asked, SILENT, (8, 9, *end[2:]), told, key=HANDED)
    assert is_linearizable(*asked, end, (8, 9, "hand_over", MISSED, False), key=HANDED)
    assert not is_linearizable(*asked, again, key=HANDED)
    assert not is_linearizable(*asked, end, again, key=HANDED)
    assert not is_linearizable(
        *asked, SILENT, (8, 9, "claim", ("w2",), "in_doubt"), key=HANDED
    )
    assert not is_linearizable(*asked, SILENT, again, key="1l-1")


def test_objects_are_checked_apart_and_the_wrong_one_is_named() -> None:
    fine = history(ASKED, APPROVED, key="1l-1")
    wrong = history(ASKED, APPROVED, (4, 5, "read", (), UNDECIDED), key="1l-2")

    (found,) = violations([*fine, *wrong], ApprovalModel())

    assert found.key == "1l-2"
    assert [one.name for one in found.left] == ["read"]
    assert "Does not follow" in str(found)


def test_a_long_history_of_many_at_once_is_searched_in_no_time() -> None:
    reads: list[Row] = [(2, 1000, "read", (), READY) for _ in range(100)]
    lost: list[Row] = [
        (2, None, "decide", (f"p{at}", "reject", 1, 0), None) for at in range(30)
    ]
    decided: Row = (2, 1000, "decide", APPROVE, "decided")

    assert is_linearizable(ASKED, *reads, *lost, decided)
    stale: Row = (1001, 1002, "read", (), UNDECIDED)
    assert not is_linearizable(ASKED, *reads, *lost, decided, stale)


def by_brute_force(every: list[Operation]) -> bool:
    """Return whether some order of the returned and some open operations is valid."""
    return _goes_on([ApprovalModel().start()], -1, every)


def _goes_on(states: list[State], latest: int, left: list[Operation]) -> bool:
    """Return whether some order of the rest continues one that led to these states.

    Orders with the same beginning are tried together. `latest` is the time of the last
    call in the beginning.
    """
    if not states:
        return False
    if all(one.is_open for one in left):
        return True
    return any(
        _goes_on(
            [after for each in states for after in ApprovalModel().step(each, one)],
            max(latest, one.called),
            [*left[:at], *left[at + 1 :]],
        )
        for at, one in enumerate(left)
        # No earlier one in this order was called after its return.
        if one.returned >= latest
    )


READS = st.sampled_from([UNDECIDED, READY, RUNNING, ENDED])
KINDS = st.one_of(
    st.tuples(st.just("submit"), st.just((7,)), st.just("i")),
    st.tuples(
        st.just("decide"),
        st.sampled_from([APPROVE, REJECT]),
        st.sampled_from(
            [
                "decided",
                ("refused", "rejected", BY_BEN),
                ("refused", "authorized", BY_ANA),
            ]
        ),
    ),
    st.tuples(
        st.just("claim"),
        st.sampled_from([("w1",), ("w2",)]),
        st.sampled_from([("claimed", 1, 7), "busy", ("refused", "pending")]),
    ),
    st.tuples(st.just("finish"), st.just((1, "r")), st.booleans()),
    st.tuples(st.just("read"), st.just(()), READS),
    st.tuples(st.just("withdraw"), st.just(()), st.none()),
)  # fmt: skip


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """Make histories of a few operations, many of which have an order."""
    found = [Operation("1", "submit", (7,), 0, 1, "i")] if draw(st.booleans()) else []
    state = State(item="i", status="pending", action=7)
    for name, about, output in draw(st.lists(KINDS, max_size=5)):
        at = draw(st.integers(0, 12))
        end = draw(st.sampled_from([NEVER, *range(at + 1, at + 10)]))
        said: Value = output
        # Often what the object would answer if all happened in this order.
        if draw(st.booleans()):
            said, state = answered(state, Operation("1", name, about, output=output))
        found.append(
            Operation("1", name, about, at, end, None if end == NEVER else said)
        )
    return found


@settings(max_examples=examples(3000), deadline=None)
@given(small_histories())
def test_it_says_what_trying_every_order_says(every: list[Operation]) -> None:
    assert (violation(every, ApprovalModel()) is None) == by_brute_force(every)
