"""What people do with a call that waits, and when its times are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decision,
    Edit,
    Expired,
    Forbidden,
    Refusal,
    Reject,
    Reviewer,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.ending import end_overdue
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, HandOver, Inquiry, Item, Waiting
from keyturn.gateway.approvals.requirement import Asking, Role
from keyturn.gateway.approvals.revoking import revoke
from keyturn.gateway.approvals.timing import (
    DOUBT_THEN_MS,
    LONGEST,
    TimerKind,
    end_of,
    ends,
    is_extendable,
    is_pressing,
    timers,
)
from keyturn.gateway.approvals.waiting_changes import (
    MAX_QUESTION,
    MAX_REPLY,
    MOST_QUESTIONS,
    MOST_REPLIES,
    acknowledge,
    answered_by,
    ask,
    ask_again,
    extend,
    fire,
    reply,
    snooze,
    takes_reply,
    unanswered,
)
from keyturn.gateway.protocol.records import ItemState, NotTaken, Person, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    EVE,
    HOUR_MS,
    NOW_MS,
    ONE_SENIOR,
    SENIOR,
    TWO,
    an_approval,
    an_item,
    changed,
    click_on,
    evaluation,
    forbidden,
    reviewer,
    say,
)
from tests.levels import examples

REVIEWER_ANA = reviewer(ANA)
LATER_MS = NOW_MS + HOUR_MS


class Act(Protocol):
    """A function that extends or takes an approval."""

    def __call__(
        self, approval: Approval, reviewer: Reviewer, *, now_ms: int
    ) -> Change | Refusal:
        """Do it."""
        ...


@given(st.lists(st.integers(0, HOUR_MS), max_size=12))
def test_no_number_of_extensions_passes_twice_the_time(waits: list[int]) -> None:
    approval, now_ms = an_approval(), NOW_MS
    for wait_ms in waits:
        now_ms += wait_ms
        before = approval
        result = extend(approval, REVIEWER_ANA, now_ms=now_ms)
        if isinstance(result, Change):
            approval = result.approval
            assert before.expires_at_ms < approval.expires_at_ms
    assert approval.expires_at_ms <= NOW_MS + LONGEST * HOUR_MS
    assert approval.items == an_approval().items


@pytest.mark.parametrize("act", [extend, acknowledge])
@pytest.mark.parametrize(
    ("who", "now_ms", "kind"),
    [
        (reviewer(CHLOE), NOW_MS, "forbidden"),
        (reviewer(DAN), NOW_MS, "forbidden"),
        (REVIEWER_ANA.with_(account=AccountKind.GUEST), NOW_MS, "forbidden"),
        (REVIEWER_ANA.with_(account=AccountKind.UNKNOWN), NOW_MS, "forbidden"),
        (REVIEWER_ANA, LATER_MS, "expired"),
    ],
)
def test_only_who_may_decide_in_time_may_do_either(
    act: Act, who: Reviewer, now_ms: int, kind: str
) -> None:
    result = act(an_approval(), who, now_ms=now_ms)
    assert not isinstance(result, Change)
    assert result.kind == kind


@pytest.mark.parametrize(
    ("tier", "until_ms", "why"),
    [
        (Tier.ESCALATE, NOW_MS + 1, "escalated call cannot be snoozed"),
        (Tier.APPROVE, LATER_MS, "expire"),
    ],
)
def test_a_snooze_is_for_calls_that_can_wait_until_then(
    tier: Tier, until_ms: int, why: str
) -> None:
    approval = an_approval(an_item(tier=tier))
    result = snooze(approval, until_ms, REVIEWER_ANA, NOW_MS)
    assert isinstance(result, Forbidden)
    assert why in result.reason


def test_who_takes_it_is_named_for_ten_minutes_and_may_be_followed() -> None:
    first = changed(acknowledge(an_approval(), REVIEWER_ANA, now_ms=NOW_MS)).approval
    second = changed(acknowledge(first, reviewer(BEN), now_ms=NOW_MS + 1))

    taken = second.approval.acknowledged
    assert taken is not None
    assert (taken.by, taken.until_ms) == (BEN, NOW_MS + 1 + 600_000)
    rings = timers(first, second.approval, now_ms=NOW_MS)
    assert rings == [("release", taken.until_ms)]
    [event] = second.events
    assert (event.name, event.actor) == (EventName.APPROVAL_ACKNOWLEDGED, "T0/U0BEN")


def of_state(state: ItemState) -> Approval:
    return an_approval(an_item().with_(state=state))


@pytest.mark.parametrize("kind", TimerKind)
def test_a_timer_of_a_card_that_nobody_waits_for_does_nothing(kind: TimerKind) -> None:
    assert fire(of_state(ItemState.EXECUTED), kind, NOW_MS) is None
    assert fire(an_approval(), kind, LATER_MS) is None


def test_people_are_asked_about_a_doubt_again_and_again() -> None:
    approval = of_state(ItemState.IN_DOUBT)
    change = changed(fire(approval, TimerKind.DOUBT, NOW_MS))
    [event] = change.events
    assert event.name is EventName.APPROVAL_STILL_IN_DOUBT
    assert change.timers == ((TimerKind.DOUBT.value, NOW_MS + DOUBT_THEN_MS),)
    assert fire(approval, TimerKind.REMIND, NOW_MS) is None


def test_what_a_timer_did_is_on_the_record() -> None:
    approval = an_approval()
    taken = changed(acknowledge(approval, REVIEWER_ANA, now_ms=NOW_MS)).approval
    released = changed(fire(taken, TimerKind.RELEASE, NOW_MS)).approval
    reminded = changed(fire(approval, TimerKind.REMIND, NOW_MS)).approval
    escalated = changed(fire(approval, TimerKind.ESCALATE, NOW_MS)).approval
    assert taken.acknowledged is not None
    assert released.acknowledged is None
    assert reminded == approval.with_(rev=2, reminded_at_ms=NOW_MS)
    assert escalated.escalated_at_ms == NOW_MS


def test_a_longer_time_is_followed_by_another_reminder() -> None:
    waiting = Waiting(remind_at_ms=HOUR_MS // 2, escalate_at_ms=HOUR_MS * 4 // 5)
    before = an_approval().with_(waiting=waiting)
    after = changed(extend(before, REVIEWER_ANA, now_ms=NOW_MS)).approval
    rings = dict(timers(before, after, now_ms=NOW_MS))
    assert rings == {
        "remind": NOW_MS + HOUR_MS,
        "escalate": NOW_MS + HOUR_MS * 13 // 10,
    }
    called = after.with_(escalated_at_ms=NOW_MS)
    assert dict(timers(before, called, now_ms=NOW_MS)) == {"remind": NOW_MS + HOUR_MS}


@given(st.integers(1, 99), st.integers(0, 59), st.integers(-HOUR_MS // 2, HOUR_MS // 2))
def test_a_new_end_sends_no_reminder(share: int, minutes: int, added_ms: int) -> None:
    """Whether a raise brought the end forward, or a person extended it."""
    at_ms, now_ms = HOUR_MS * share // 100, NOW_MS + minutes * HOUR_MS // 60
    waiting = Waiting(remind_at_ms=at_ms, escalate_at_ms=at_ms)
    approval = an_approval().with_(waiting=waiting)
    after = approval.with_(expires_at_ms=approval.expires_at_ms + added_ms)
    left_ms = after.expires_at_ms - now_ms
    assume(added_ms and left_ms > 0)

    rings = dict(timers(approval, after, now_ms=now_ms))

    assert rings.keys() == {"remind", "escalate"}
    for due_ms in rings.values():
        assert now_ms + left_ms * share // 100 - 1 <= due_ms < after.expires_at_ms


def test_more_time_is_offered_when_little_is_left_or_people_were_called() -> None:
    approval = an_approval()

    assert not is_pressing(approval, now_ms=NOW_MS)
    assert is_pressing(approval, now_ms=LATER_MS - HOUR_MS // 5)
    assert is_pressing(approval.with_(reminded_at_ms=NOW_MS), now_ms=NOW_MS)
    assert is_pressing(approval.with_(escalated_at_ms=NOW_MS), now_ms=NOW_MS)


# Whom a card asks is changed in every role of an approval, those called later too.


def asks_of(found: Approval) -> list[tuple[str, ...]]:
    """Return whom the roles of each call ask, and whom those that are called later."""
    of_items = [
        role.asked.users for item in found.items for role in item.requirement.roles
    ]
    return [*of_items, *(role.asked.users for role in found.waiting.roles)]


def by_tier(item: Item, role: Role) -> Role:
    return role.with_(asking=Asking(users=(f"{role.name} at {item.tier.value}",)))


def test_roles_are_asked_as_for_their_call_and_later_ones_as_for_the_highest() -> None:
    items = (an_item(0), an_item(1, requirement=TWO, tier=Tier.ESCALATE))
    waiting = Waiting(escalate_at_ms=1, roles=(SENIOR,))

    found = an_approval(*items).with_(waiting=waiting).with_roles(by_tier)

    assert asks_of(found) == [
        ("support at approve",),
        ("support at escalate",),
        ("senior at escalate",),
        ("senior at escalate",),
    ]


def test_a_call_that_is_decided_does_not_say_how_later_roles_are_asked() -> None:
    decided = an_item(1, tier=Tier.ESCALATE).with_(state=ItemState.REJECTED)
    waiting = Waiting(escalate_at_ms=1, roles=(SENIOR,))
    found = an_approval(an_item(0), decided).with_(waiting=waiting)

    assert asks_of(found.with_roles(by_tier))[-1] == ("senior at approve",)

    ended = found.with_(items=(decided.with_(index=0),))
    assert asks_of(ended.with_roles(by_tier))[-1] == ("senior at escalate",)


# The calls of a card keep their own deadlines, independent of the others.


CALLS = 4
MINUTE_MS = 60_000
SHORT_MS = 10 * MINUTE_MS
ESCALATED = evaluation(Tier.ESCALATE, ONE_SENIOR, ttl_ms=SHORT_MS)


def a_card() -> Approval:
    return an_approval(*(an_item(index) for index in range(CALLS)))


def decided(
    approval: Approval,
    index: int,
    decision: Decision,
    now_ms: int,
    policy_now: PolicyDecision | None = None,
) -> Approval:
    """Return what a decision on one call makes of a card; itself, where refused."""
    click = click_on(approval, index)
    found = say(approval, decision, click=click, now_ms=now_ms, policy_now=policy_now)
    return found.approval if isinstance(found, Change) else approval


def edited(approval: Approval, index: int, now_ms: int) -> Approval:
    """Edit one call so that its tier allows it less time."""
    edit = Edit(args={"order_id": f"{now_ms}", "amount": 5})
    return decided(approval, index, edit, now_ms, ESCALATED)


def approved(approval: Approval, index: int, now_ms: int) -> Approval:
    return decided(approval, index, Approve(), now_ms)


def rejected(approval: Approval, index: int, now_ms: int) -> Approval:
    return decided(approval, index, Reject(reason="no"), now_ms)


def asked_anew(approval: Approval, index: int, now_ms: int) -> Approval:
    """At its claim, a stricter policy sends one authorized call back to people."""
    item = approval.items[index]
    if item.state is not ItemState.AUTHORIZED:
        return approval
    change = revoke(approval, item, ESCALATED, now_ms=now_ms)
    return change.approval if change else approval


def swept(approval: Approval, now_ms: int) -> Approval:
    change = end_overdue(approval, now_ms)
    return change.approval if change else approval


@dataclass(frozen=True)
class Step:
    """What happens to one call of a card, so long after what happened before."""

    move: Callable[[Approval, int, int], Approval]
    index: int
    after_ms: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([edited, approved, rejected, asked_anew]),
        st.integers(0, CALLS - 1),
        st.integers(0, 20 * MINUTE_MS),
    ),
    max_size=12,
)


def waiting(approval: Approval) -> dict[int, int]:
    """Return when each call ends that waits."""
    return {
        item.index: end_of(approval, item) for item in approval.items if item.is_pending
    }


@given(steps)
@settings(max_examples=examples(100))
def test_no_call_changes_the_deadline_of_another(taken: list[Step]) -> None:
    approval, now_ms = a_card(), NOW_MS
    for step in taken:
        now_ms += step.after_ms
        before = waiting(approval)
        approval = swept(approval, now_ms)
        assert waiting(approval) == {i: at for i, at in before.items() if at > now_ms}

        before = waiting(approval)
        approval = step.move(approval, step.index, now_ms)

        after = waiting(approval)
        others = before.keys() - {step.index}
        assert {i: after[i] for i in others} == {i: before[i] for i in others}
        # Cards, lists and reminders show when the first call of a card ends.
        if after:
            assert approval.expires_at_ms == min(after.values())


HOUR_EACH = dict.fromkeys(range(CALLS), NOW_MS + HOUR_MS)


def test_an_edit_that_raises_one_call_leaves_the_others_their_hour() -> None:
    approval = edited(a_card(), 1, NOW_MS)
    assert waiting(approval) == {**HOUR_EACH, 1: NOW_MS + SHORT_MS}
    found = [[i.index for i in items] for items in ends(approval).values()]
    assert found == [[1], [0, 2, 3]]
    # It is told later that it expired with its own deadline.
    late = swept(approval, NOW_MS + SHORT_MS)
    click, now_ms = click_on(late, 1), NOW_MS + SHORT_MS + 1
    told = say(late, Approve(), BEN, click=click, now_ms=now_ms)
    assert told == Expired(expires_at_ms=NOW_MS + SHORT_MS)


@given(steps, st.integers(1, 6))
@settings(max_examples=examples(50))
def test_more_time_stops_at_each_calls_bound(taken: list[Step], times: int) -> None:
    approval, now_ms = a_card(), NOW_MS
    for step in taken:
        now_ms += step.after_ms
        approval = step.move(swept(approval, now_ms), step.index, now_ms)
    approval = swept(approval, now_ms)

    for _ in range(times):
        before = waiting(approval)
        change = extend(approval, REVIEWER_ANA, now_ms=now_ms)
        if not isinstance(change, Change):
            break
        after = waiting(change.approval)
        added = {after[index] - before[index] for index in before}
        assert all(0 <= more <= approval.ttl_ms // 2 for more in added)
        assert any(added)
        approval = change.approval

    for item in approval.items:
        if item.is_pending:
            longest = item.latest_at_ms or NOW_MS + LONGEST * HOUR_MS
            assert end_of(approval, item) <= longest


def test_more_time_goes_to_what_can_get_more() -> None:
    approval = edited(a_card(), 1, NOW_MS)
    while isinstance(change := extend(approval, REVIEWER_ANA, NOW_MS), Change):
        approval = change.approval

    longest = dict.fromkeys(range(CALLS), NOW_MS + LONGEST * HOUR_MS)
    assert waiting(approval) == {**longest, 1: NOW_MS + LONGEST * SHORT_MS}
    assert not is_extendable(approval, now_ms=NOW_MS)


def test_somebody_can_be_on_it_while_an_expired_call_is_not_swept() -> None:
    approval = edited(a_card(), 1, NOW_MS)

    change = acknowledge(approval, REVIEWER_ANA, NOW_MS + SHORT_MS)

    assert isinstance(change, Change)
    # Written before the next end, and not before one that is past.
    assert change.before_ms == NOW_MS + HOUR_MS


# Reviewers ask the requester; the calls stay pending as before.


LATER = NOW_MS + HOUR_MS
WHY = "Was it broken?"


def after(result: object) -> Approval:
    """Return the record after a change; fail for anything else."""
    return changed(result).approval


def asked(approval: Approval | None = None, text: str = WHY) -> Approval:
    """Return an approval about which Ana has asked."""
    return after(ask(approval or an_approval(), None, reviewer(ANA), text, NOW_MS))


def replied(approval: Approval, text: str = "It was.", ts: str = "17.1") -> Approval:
    """Return an approval after a reply of its requester."""
    return after(reply(approval, DAN, text, ts, NOW_MS))


def test_a_question_changes_nothing_but_what_is_shown() -> None:
    before = an_approval()

    change = changed(ask(before, None, reviewer(ANA), WHY, NOW_MS))

    assert change.approval == before.with_(
        rev=2, inquiries=(Inquiry(by=ANA, text=WHY, at_ms=NOW_MS),)
    )
    assert change.before_ms == before.expires_at_ms
    assert not change.resumes
    assert not change.timers
    (event,) = change.events
    assert (event.name, event.item) == (EventName.APPROVAL_ASKED, "")
    assert (event.actor, event.roles) == ("T0/U0ANA", ("support",))
    assert (event.reason, event.data) == (WHY, {"gesture": "api"})


def test_the_requester_replies_and_who_else_writes_does_not() -> None:
    before = asked()

    change = changed(reply(before, DAN, "It was.", "17.1", NOW_MS + 1))

    assert change.approval.inquiries[-1] == Inquiry(
        by=DAN, text="It was.", at_ms=NOW_MS + 1, reply_ts="17.1"
    )
    (event,) = change.events
    assert (event.name, event.actor) == (EventName.APPROVAL_REPLIED, "T0/U0DAN")
    assert event.data == {"gesture": "thread_reply", "reply_ts": "17.1"}
    forbidden(reply(before, BEN, "It was.", "17.1", NOW_MS))
    forbidden(reply(an_approval(), DAN, "Hm", "17.1", NOW_MS))
    assert not takes_reply(an_approval(), DAN)
    assert takes_reply(before, DAN)


def test_a_message_and_a_form_that_come_again_count_once() -> None:
    once = asked()
    assert ask(once, None, reviewer(ANA), WHY, NOW_MS + 9) == once.inquiries[0]
    after(ask(once, None, reviewer(BEN), WHY, NOW_MS))
    told = replied(once)
    # Also after the end.
    again = reply(told, DAN, "It was, edited.", "17.1", LATER + 1)
    assert again == told.inquiries[-1]
    asked(told)


@pytest.mark.parametrize(
    ("approval", "now_ms", "kind"),
    [
        (changed(say(asked(), Approve(), BEN)).approval, NOW_MS, Stale),
        (asked(), LATER, Expired),
    ],
)
def test_what_is_over_takes_neither(
    approval: Approval, now_ms: int, kind: type[object]
) -> None:
    assert isinstance(ask(approval, None, reviewer(ANA), "Why?", now_ms), kind)
    assert isinstance(reply(approval, DAN, "So", "17.1", now_ms), kind)


def test_only_who_may_decide_the_call_asks_about_it() -> None:
    both = an_approval(an_item(), an_item(1, requirement=ONE_SENIOR))
    about = [
        isinstance(ask(both, call, reviewer(person), WHY, NOW_MS), Change)
        for person in (ANA, CHLOE)
        for call in (0, 1, None)
    ]
    assert about == [True, False, True, False, True, True]
    forbidden(ask(both, None, reviewer(DAN), WHY, NOW_MS))
    assert isinstance(ask(both, 2, reviewer(ANA), WHY, NOW_MS), Unknown)
    assert after(ask(both, 1, reviewer(CHLOE), WHY, NOW_MS)).inquiries[0].call == 1


def test_nobody_is_asked_where_nobody_is_known() -> None:
    alone = an_approval().with_(requester=None, principals=())
    refused = forbidden(ask(alone, None, reviewer(ANA), WHY, NOW_MS))
    assert "The requester is not known" in refused


@pytest.mark.parametrize(
    ("question", "answer"),
    [("x" * (MAX_QUESTION + 1), "x" * (MAX_REPLY + 1)), (" \n", "")],
)
def test_a_text_that_is_too_long_or_none_is_refused(question: str, answer: str) -> None:
    forbidden(ask(an_approval(), None, reviewer(ANA), question, NOW_MS))
    forbidden(reply(asked(), DAN, answer, "17.1", NOW_MS))


def test_what_is_kept_is_bounded() -> None:
    full = an_approval()
    for n in range(MOST_QUESTIONS):
        full = asked(full, f"Question {n}?")
    for n in range(MOST_REPLIES):
        full = replied(full, f"Reply {n}", f"17.{n}")
    forbidden(ask(full, None, reviewer(ANA), "Why?", NOW_MS))
    forbidden(reply(full, DAN, "So", "18.1", NOW_MS))


@given(st.lists(st.booleans(), max_size=MOST_QUESTIONS))
def test_the_first_reply_after_a_question_answers_it(replies: list[bool]) -> None:
    approval = an_approval()
    for n, is_reply in enumerate(replies):
        was, text, ts = approval, f"{n}", f"17.{n}"
        result = (
            reply(was, DAN, text, ts, NOW_MS)
            if is_reply
            else ask(was, None, reviewer(ANA), text, NOW_MS)
        )
        approval = result.approval if isinstance(result, Change) else was

    said = approval.inquiries
    answered = [
        question
        for one in said
        if one.is_reply
        for question in answered_by(said, one.reply_ts)
    ]
    assert [*answered, *unanswered(said)] == [one for one in said if not one.is_reply]
    assert answered_by(said, "none") == ()
    # In every case the call stays pending as before.
    assert approval.state is ApprovalState.OPEN
    assert approval.items == an_approval().items
    assert approval.items[0].state is ItemState.PENDING
    assert approval.expires_at_ms == an_approval().expires_at_ms
    assert (approval.version, approval.rev) == (1, 1 + len(said))


def test_a_reply_answers_what_was_asked_since_the_one_before() -> None:
    one, two, three = (Inquiry(by=ANA, text=f"{n}", at_ms=NOW_MS) for n in range(3))
    first = Inquiry(by=DAN, text="yes", at_ms=NOW_MS, reply_ts="1.0", call=1)
    second = Inquiry(by=DAN, text="no", at_ms=NOW_MS, reply_ts="2.0")
    inquiries = (one, two, first, three, second)

    found = [answered_by(inquiries, ts) for ts in ("1.0", "2.0", "3.0")]

    assert found == [(one, two), (three,), ()]
    assert [first.is_about(call) for call in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("problem", "by", "outcome"),
    [
        ("refused", ANA, Change),
        ("failed", ANA, Change),
        ("refused", DAN, Forbidden),
        ("refused", EVE, Forbidden),
        ("deleted", ANA, Stale),
    ],
)
def test_a_reviewer_may_want_an_agent_that_refused_to_ask_again(
    problem: NotTaken, by: Person, outcome: type[Change | Refusal]
) -> None:
    handed = HandOver(problem=problem)
    item = an_item().with_(state=ItemState.NOT_TAKEN, handed=handed)

    found = ask_again(an_approval(item), 0, reviewer(by), NOW_MS)

    assert isinstance(found, outcome)
