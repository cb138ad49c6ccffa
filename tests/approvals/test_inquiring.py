"""Reviewers ask the requester; the calls stay pending as before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    Approve,
    Expired,
    Forbidden,
    Refusal,
    Stale,
    Unknown,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Approval, HandOver, Inquiry
from keyturn.gateway.approvals.waiting_changes import (
    MAX_QUESTION,
    MAX_REPLY,
    MOST_QUESTIONS,
    MOST_REPLIES,
    answered_by,
    ask,
    ask_again,
    reply,
    takes_reply,
    unanswered,
)
from keyturn.gateway.protocol.records import ItemState, NotTaken, Person
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    EVE,
    HOUR_MS,
    NOW_MS,
    ONE_SENIOR,
    an_approval,
    an_item,
    changed,
    forbidden,
    reviewer,
    say,
)

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
