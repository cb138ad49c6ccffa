"""Extensions are limited, and a taken approval can be decided by others."""

from __future__ import annotations

from typing import Protocol

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import AccountKind, Refusal, Reviewer
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval, Waiting
from keyturn.gateway.approvals.timing import (
    DOUBT_THEN_MS,
    LONGEST,
    TimerKind,
    is_pressing,
    timers,
)
from keyturn.gateway.approvals.waiting_changes import acknowledge, extend, fire
from keyturn.gateway.protocol.records import ItemState
from tests.bot.samples import KIM, LATER, NOW, TEAM, a_refund, an_approval, in_state

ANA = Reviewer(
    team=TEAM,
    user="U0ANA",
    usergroups=frozenset({"S0SUPPORT"}),
    account=AccountKind.MEMBER,
)
NO_GROUPS: frozenset[str] = frozenset()
EVE = ANA.with_(user="U0EVE", usergroups=NO_GROUPS)
DAN = ANA.with_(user=KIM.user)
HOUR = LATER - NOW


class Act(Protocol):
    """A function that extends or takes an approval."""

    def __call__(
        self, approval: Approval, reviewer: Reviewer, *, now_ms: int
    ) -> Change | Refusal:
        """Do it."""
        ...


@given(st.lists(st.integers(0, HOUR), max_size=12))
def test_no_number_of_extensions_passes_twice_the_time(waits: list[int]) -> None:
    approval, now_ms = an_approval(), NOW

    for wait_ms in waits:
        now_ms += wait_ms
        before = approval
        result = extend(approval, ANA, now_ms=now_ms)
        if isinstance(result, Change):
            approval = result.approval
            assert before.expires_at_ms < approval.expires_at_ms

    assert approval.expires_at_ms <= NOW + LONGEST * HOUR
    assert approval.items == an_approval().items


@pytest.mark.parametrize("act", [extend, acknowledge])
@pytest.mark.parametrize(
    ("who", "now_ms", "kind"),
    [
        (EVE, NOW, "forbidden"),
        (DAN, NOW, "forbidden"),
        (ANA.with_(account=AccountKind.GUEST), NOW, "forbidden"),
        (
            ANA.with_(usergroups=NO_GROUPS, unknown_groups=ANA.usergroups),
            NOW,
            "forbidden",
        ),
        (ANA, LATER, "expired"),
    ],
)
def test_only_who_may_decide_in_time_may_do_either(
    act: Act, who: Reviewer, now_ms: int, kind: str
) -> None:
    result = act(an_approval(), who, now_ms=now_ms)

    assert not isinstance(result, Change)
    assert result.kind == kind


def test_who_takes_it_is_named_for_ten_minutes_and_may_be_followed() -> None:
    first = acknowledge(an_approval(), ANA, now_ms=NOW)
    assert isinstance(first, Change)
    ben = ANA.with_(user="U0BEN")
    second = acknowledge(first.approval, ben, now_ms=NOW + 1)
    assert isinstance(second, Change)

    taken = second.approval.acknowledged
    assert taken is not None
    assert (taken.by.user, taken.until_ms) == ("U0BEN", NOW + 1 + 600_000)
    assert timers(first.approval, second.approval, now_ms=NOW) == [
        ("release", taken.until_ms)
    ]
    assert second.events[0].name is EventName.APPROVAL_ACKNOWLEDGED
    assert second.events[0].actor == f"{TEAM}/U0BEN"


def test_a_timer_of_a_card_that_nobody_waits_for_does_nothing() -> None:
    for kind in TimerKind:
        assert (
            fire(an_approval(in_state(a_refund(), ItemState.EXECUTED)), kind, NOW)
            is None
        )
        assert fire(an_approval(), kind, LATER) is None


def test_people_are_asked_about_a_doubt_again_and_again() -> None:
    approval = an_approval(in_state(a_refund(), ItemState.IN_DOUBT))

    change = fire(approval, TimerKind.DOUBT, NOW)

    assert change is not None
    assert [event.name for event in change.events] == [
        EventName.APPROVAL_STILL_IN_DOUBT
    ]
    assert change.timers == ((TimerKind.DOUBT.value, NOW + DOUBT_THEN_MS),)
    assert fire(approval, TimerKind.REMIND, NOW) is None


def test_what_a_timer_did_is_on_the_record() -> None:
    approval = an_approval()
    taken = acknowledge(approval, ANA, now_ms=NOW)
    assert isinstance(taken, Change)

    released = fire(taken.approval, TimerKind.RELEASE, NOW)
    reminded = fire(approval, TimerKind.REMIND, NOW)
    escalated = fire(approval, TimerKind.ESCALATE, NOW)

    assert released is not None
    assert (taken.approval.acknowledged is None, released.approval.acknowledged) == (
        False,
        None,
    )
    assert reminded is not None
    assert reminded.approval.reminded_at_ms == NOW
    assert escalated is not None
    assert escalated.approval.escalated_at_ms == NOW


def test_a_longer_time_is_followed_by_another_reminder() -> None:
    waiting = Waiting(remind_at_ms=HOUR // 2, escalate_at_ms=HOUR * 4 // 5)
    approval = an_approval(waiting=waiting)
    result = extend(approval, ANA, now_ms=NOW)
    assert isinstance(result, Change)

    rings = dict(timers(approval, result.approval, now_ms=NOW))

    assert rings == {"remind": NOW + HOUR, "escalate": NOW + HOUR * 13 // 10}
    called = result.approval.with_(escalated_at_ms=NOW)
    assert dict(timers(approval, called, now_ms=NOW)) == {"remind": NOW + HOUR}


@given(st.integers(1, 99), st.integers(0, 59), st.integers(-HOUR // 2, HOUR // 2))
def test_another_end_reminds_nobody_at_once(
    share: int, minutes: int, added_ms: int
) -> None:
    """Whether a raise brought the end forward, or a person extended it."""
    at_ms, now_ms = HOUR * share // 100, NOW + minutes * HOUR // 60
    waiting = Waiting(remind_at_ms=at_ms, escalate_at_ms=at_ms)
    approval = an_approval(waiting=waiting)
    after = approval.with_(expires_at_ms=approval.expires_at_ms + added_ms)
    left_ms = after.expires_at_ms - now_ms
    assume(added_ms and left_ms > 0)

    rings = dict(timers(approval, after, now_ms=now_ms))

    assert rings.keys() == {"remind", "escalate"}
    for due_ms in rings.values():
        assert now_ms + left_ms * share // 100 - 1 <= due_ms < after.expires_at_ms


def test_more_time_is_offered_when_little_is_left_or_people_were_called() -> None:
    approval = an_approval()

    assert not is_pressing(approval, now_ms=NOW)
    assert is_pressing(approval, now_ms=LATER - HOUR // 5)
    assert is_pressing(approval.with_(reminded_at_ms=NOW), now_ms=NOW)
    assert is_pressing(approval.with_(escalated_at_ms=NOW), now_ms=NOW)
