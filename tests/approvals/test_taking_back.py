"""The requester and an editor may reject a call that they may not approve."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decision,
    Edit,
    Forbidden,
    Invalid,
    Outcome,
    Reject,
    Respond,
    Reviewer,
    Voted,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.wire import AnswerKind
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    NOW_MS,
    SENIOR,
    SUPPORT,
    TWO,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

HALF = Edit(args={"order_id": "78291", "amount": 449.5})
SENIOR_ONLY = Requirement(approvals=1, of=(SENIOR,))
MAKER = Requirement(approvals=1, of=(SUPPORT,), editor_may_vote=False)


def say(
    approval: Approval,
    decision: Decision,
    by: Reviewer,
    policy_now: PolicyDecision | None = None,
) -> Change | Outcome:
    voters = [reviewer(vote.by) for vote in approval.items[0].votes]
    return decide(
        approval,
        click_on(approval),
        decision,
        by,
        now_ms=NOW_MS,
        policy_now=policy_now,
        voters=voters,
    )


def changed(result: Change | Outcome) -> Change:
    assert isinstance(result, Change), result
    return result


def forbidden(result: Change | Outcome) -> str:
    assert isinstance(result, Forbidden), result
    return result.reason


def raised(requirement: Requirement, tier: Tier = Tier.APPROVE) -> PolicyDecision:
    return PolicyDecision(
        tier=tier, reasons=(), requirement=requirement, policy_digest="p"
    )


def test_who_asked_for_a_call_takes_it_back_and_the_agent_is_told_why() -> None:
    change = changed(
        say(an_approval(), Reject(reason="changed my mind"), reviewer(DAN))
    )

    answer = answer_for(change.approval.items[0])
    assert change.approval.items[0].state is ItemState.WITHDRAWN
    assert [one.name for one in change.events] == [EventName.ITEM_WITHDRAWN]
    assert (change.events[0].actor, change.events[0].reason) == (
        "T0/U0DAN",
        "changed my mind",
    )
    assert answer
    assert answer.type is AnswerKind.WITHDRAWN
    assert "Somebody who asked for this call took it back" in answer.message
    assert '"changed my mind"' in answer.message


def test_nobody_takes_a_call_back_in_the_place_of_another() -> None:
    ben = reviewer(BEN).with_(stands_in_for=(reviewer(DAN),))
    dan = reviewer(DAN).with_(stands_in_for=(reviewer(CHLOE),))

    by_ben = changed(say(an_approval(an_item(requirement=TWO)), Reject(), ben))
    by_dan = changed(say(an_approval(an_item(requirement=TWO)), Reject(), dan))

    assert by_ben.approval.items[0].state is ItemState.REJECTED
    assert by_dan.approval.items[0].decision
    assert by_dan.approval.items[0].decision.on_behalf_of == ()


@pytest.mark.parametrize("decision", [Approve(), HALF, Respond(message="x")])
def test_who_asked_may_say_nothing_but_no_and_is_told_so(decision: Decision) -> None:
    reason = forbidden(say(an_approval(), decision, reviewer(DAN)))

    assert "You asked for this" in reason
    assert "You can reject it if you no longer want it." in reason


@pytest.mark.parametrize(
    "account", [s for s in AccountKind if s is not AccountKind.MEMBER]
)
def test_only_a_member_takes_a_call_back(account: AccountKind) -> None:
    forbidden(say(an_approval(), Reject(), reviewer(DAN, account)))


def test_where_nobody_may_reject_nobody_is_told_that_they_can() -> None:
    fixed = an_approval(an_item(allow=(Verb.APPROVE,)))

    assert "You can" not in forbidden(say(fixed, Approve(), reviewer(DAN)))
    assert isinstance(say(fixed, Reject(), reviewer(DAN)), Invalid)


@pytest.mark.parametrize(
    ("item", "policy_now"),
    [
        (an_item(), raised(TWO, Tier.ESCALATE)),
        (an_item(), raised(SENIOR_ONLY)),
        (an_item(requirement=MAKER), None),
    ],
)
def test_who_changed_a_call_may_still_reject_it_and_not_approve_it(
    item: object, policy_now: PolicyDecision | None
) -> None:
    approval = an_approval(item)  # type: ignore[arg-type]  # an item, for pytest's sake

    edit = changed(say(approval, HALF, reviewer(ANA), policy_now))
    again = say(edit.approval, Approve(), reviewer(ANA), policy_now)
    no = changed(say(edit.approval, Reject(reason="no"), reviewer(ANA), policy_now))

    assert isinstance(edit.waits_on, Voted)
    assert edit.waits_on.have == 0
    assert "You edited this" in forbidden(again)
    assert "You can still reject it." in forbidden(again)
    assert no.approval.items[0].state is ItemState.REJECTED


def test_maker_is_not_checker_and_another_one_is() -> None:
    edit = changed(say(an_approval(an_item(requirement=MAKER)), HALF, reviewer(ANA)))
    done = changed(say(edit.approval, Approve(), reviewer(BEN)))

    assert done.approval.items[0].state is ItemState.AUTHORIZED
    assert done.approval.items[0].args == HALF.args


@pytest.mark.parametrize("person", [ANA, BEN])
def test_an_approval_carries_its_reason_where_the_policy_asks_for_one(
    person: Person,
) -> None:
    strict = an_approval(an_item(requires_reason=(Verb.APPROVE,)))

    without = say(strict, Approve(reason=" "), reviewer(person))
    unexplained = say(strict, HALF, reviewer(person))
    done = changed(say(strict, Approve(reason="I called them"), reviewer(person)))

    assert isinstance(without, Invalid)
    assert list(without.errors) == ["/reason"]
    assert isinstance(unexplained, Invalid)
    assert done.approval.items[0].votes[0].reason == "I called them"
    assert done.events[-1].reason == "I called them"
