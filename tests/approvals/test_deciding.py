"""One decision on one item: which ones count, and why."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Changed,
    Click,
    Decision,
    Edit,
    Expired,
    Forbidden,
    Invalid,
    Outcome,
    Reject,
    Respond,
    Reviewer,
    Stale,
    Voted,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    EVE,
    HOUR_MS,
    NOW_MS,
    ONE,
    SENIOR,
    SUPPORT,
    TWO,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

HALF: JsonObject = {"order_id": "78291", "amount": 449.5}


def say(
    approval: Approval,
    decision: Decision,
    by: Reviewer,
    *,
    click: Click | None = None,
    now_ms: int = NOW_MS,
    policy_now: PolicyDecision | None = None,
    waiting_now: PolicyDecision | None = None,
    voters: tuple[Reviewer, ...] | None = None,
) -> Change | Outcome:
    """Decide; earlier voters are still members, unless others are given."""
    before = [vote.by for item in approval.items for vote in item.votes]
    return decide(
        approval,
        click or click_on(approval),
        decision,
        by,
        now_ms=now_ms,
        policy_now=policy_now,
        waiting_now=waiting_now,
        voters=tuple(map(reviewer, before)) if voters is None else voters,
    )


def changed(result: Change | Outcome) -> Change:
    assert isinstance(result, Change), result
    return result


def evaluation(tier: Tier, requirement: Requirement) -> PolicyDecision:
    return PolicyDecision(
        tier=tier, reasons=("rule",), requirement=requirement, policy_digest="sha256:1"
    )


def test_one_reviewer_authorizes_an_approve_tier_call() -> None:
    change = changed(say(an_approval(), Approve(), reviewer(ANA)))

    assert change.approval.items[0].state is ItemState.AUTHORIZED
    assert change.waits_on is None
    assert change.approval.items[0].decision
    assert change.approval.items[0].decision.by == ANA
    assert [event.name for event in change.events] == [EventName.ITEM_AUTHORIZED]


def test_an_edit_authorizes_other_arguments_and_records_the_difference() -> None:
    edit = Edit(args=HALF, reason="half was damaged")

    change = changed(say(an_approval(), edit, reviewer(ANA)))

    record = change.approval.items[0].edit
    assert record
    assert change.approval.items[0].args == HALF
    assert change.approval.version == 2
    assert record.patch == ({"op": "replace", "path": "/amount", "value": 449.5},)
    assert (record.by, record.reason) == (ANA, "half was damaged")
    assert (
        record.original_hash
        != record.edited_hash
        == change.approval.items[0].action_hash
    )


def test_unchanged_arguments_are_an_approve_and_not_an_edit() -> None:
    same = Edit(args={"amount": 899.0, "order_id": "78291"}, reason="looks right")

    change = changed(say(an_approval(), same, reviewer(ANA)))

    assert change.approval.items[0].edit is None
    assert change.approval.version == 1
    assert change.approval.items[0].decision
    assert change.approval.items[0].decision.verb is Verb.APPROVE


@pytest.mark.parametrize(
    ("args", "pointer"),
    [
        ({"order_id": "78291", "amount": -1}, "/amount"),
        ({"order_id": "78291", "amount": "449.50"}, "/amount"),
        ({"order_id": "78291"}, "/amount"),
        ({**HALF, "smuggled": 1}, ""),
    ],
)
def test_an_edit_outside_the_schema_is_refused_at_its_place(
    args: JsonObject, pointer: str
) -> None:
    result = say(an_approval(), Edit(args=args), reviewer(ANA))

    assert isinstance(result, Invalid)
    assert list(result.errors) == [pointer]


def test_reject_and_respond_end_the_item_with_their_text() -> None:
    rejected = changed(say(an_approval(), Reject(reason="no"), reviewer(ANA)))
    answered = changed(say(an_approval(), Respond(message="ask"), reviewer(ANA)))

    assert rejected.approval.items[0].state is ItemState.REJECTED
    assert answered.approval.items[0].state is ItemState.ANSWERED
    assert answered.approval.items[0].decision
    assert answered.approval.items[0].decision.text == "ask"


@pytest.mark.parametrize("message", ["", " \n"])
def test_an_empty_answer_is_none(message: str) -> None:
    result = say(an_approval(), Respond(message=message), reviewer(ANA))

    assert result == Invalid(errors={"": "The answer is empty."})


def test_an_edit_that_no_strict_json_can_hold_is_refused_at_its_place() -> None:
    approval = an_approval(an_item(schema=None))

    result = say(approval, Edit(args={"lines": [1, 2**63]}), reviewer(ANA))

    assert isinstance(result, Invalid)
    assert list(result.errors) == ["/lines/1"]
    assert result.errors["/lines/1"].startswith("an integer has more than 64 bits")


def test_a_rejection_needs_its_reason_where_the_policy_says_so() -> None:
    strict = an_approval(an_item(requires_reason=(Verb.REJECT,)))

    assert isinstance(say(strict, Reject(reason=" "), reviewer(ANA)), Invalid)
    assert isinstance(say(strict, Reject(reason="x"), reviewer(ANA)), Change)


@pytest.mark.parametrize("reason", ["", "x" * 3001])
@pytest.mark.parametrize("refund", ["899", "450"])
def test_what_is_wrong_with_the_reason_of_an_edit_is_not_told_of_an_argument(
    refund: str, reason: str
) -> None:
    item = an_item(
        args={"refund": "899", "reason": "damaged"},
        schema=None,
        requires_reason=(Verb.APPROVE,),
    )
    edit = Edit(args={"refund": refund, "reason": "damaged"}, reason=reason)

    result = say(an_approval(item), edit, reviewer(ANA))

    assert isinstance(result, Invalid)
    assert list(result.errors) == [""]


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (reviewer(DAN), "You asked for this"),
        (reviewer(CHLOE), "Please ask one of them"),
        (reviewer(ANA, AccountKind.GUEST), "Guests"),
        (reviewer(ANA, AccountKind.STRANGER), "other organizations"),
        (reviewer(ANA, AccountKind.BOT), "Bots"),
        (reviewer(ANA, AccountKind.DEACTIVATED), "deactivated"),
        (reviewer(ANA, AccountKind.UNKNOWN), "did not say who you are"),
    ],
)
@pytest.mark.parametrize(
    "decision", [Approve(), Edit(args=HALF), Reject(reason="x"), Respond(message="y")]
)
def test_nobody_decides_who_may_not(
    by: Reviewer, words: str, decision: Decision
) -> None:
    if by.person == DAN and isinstance(decision, Reject):
        pytest.skip("what somebody asked for they may take back")

    result = say(an_approval(), decision, by)

    assert isinstance(result, Forbidden)
    assert words in result.reason


@pytest.mark.parametrize("roles", [(), (Role(name="nobody"),)])
def test_an_empty_list_of_reviewers_means_nobody(roles: tuple[Role, ...]) -> None:
    approval = an_approval(an_item(requirement=Requirement(approvals=1, of=roles)))

    result = say(approval, Approve(), reviewer(ANA))

    assert isinstance(result, Forbidden)
    assert "nobody can approve" in result.reason


def test_unresolved_user_groups_approve_nothing() -> None:
    group = Requirement(
        approvals=1, of=(Role(name="support", usergroups=("S0SUPPORT",)),)
    )
    approval = an_approval(an_item(requirement=group))
    ana = reviewer(ANA)

    unresolved = say(
        approval, Approve(), ana.with_(unknown_groups=frozenset({"S0SUPPORT"}))
    )
    resolved = say(approval, Approve(), ana.with_(usergroups=frozenset({"S0SUPPORT"})))

    assert isinstance(unresolved, Forbidden)
    assert "who is in support" in unresolved.reason
    assert isinstance(resolved, Change)


def test_a_click_after_the_deadline_is_expired_whatever_it_says() -> None:
    result = say(an_approval(), Approve(), reviewer(ANA), now_ms=NOW_MS + HOUR_MS)

    assert isinstance(result, Expired)


def test_a_second_decision_is_told_who_was_faster() -> None:
    first = changed(say(an_approval(), Approve(), reviewer(ANA)))

    second = say(
        first.approval,
        Reject(reason="no"),
        reviewer(BEN),
        click=click_on(an_approval()),
    )

    assert isinstance(second, Stale)
    assert second.decision
    assert second.decision.by == ANA


def test_an_action_hash_of_another_item_is_refused() -> None:
    approval = an_approval(an_item(0), an_item(1))
    borrowed = click_on(approval, 0).with_(action_hash=approval.items[1].action_hash)

    assert isinstance(say(approval, Approve(), reviewer(ANA), click=borrowed), Changed)


@pytest.mark.parametrize("index", [-1, 1, 99])
def test_an_item_that_is_not_there_is_refused(index: int) -> None:
    click = click_on(an_approval()).with_(index=index)

    assert isinstance(
        say(an_approval(), Approve(), reviewer(ANA), click=click), Changed
    )


def test_a_decision_that_the_tool_does_not_allow_is_refused() -> None:
    approval = an_approval(an_item(allow=(Verb.APPROVE, Verb.REJECT)))

    assert isinstance(say(approval, Edit(args=HALF), reviewer(ANA)), Invalid)
    assert isinstance(say(approval, Respond(message="x"), reviewer(ANA)), Invalid)


def test_an_unchanged_edit_is_no_way_around_a_forbidden_approve() -> None:
    approval = an_approval(an_item(allow=(Verb.EDIT, Verb.REJECT)))
    same = Edit(args={"order_id": "78291", "amount": 899})

    assert isinstance(say(approval, same, reviewer(ANA)), Invalid)
    assert isinstance(say(approval, Edit(args=HALF), reviewer(ANA)), Change)


def test_two_people_are_needed_and_one_of_them_senior() -> None:
    approval = an_approval(an_item(requirement=TWO, tier=Tier.ESCALATE))

    first = changed(say(approval, Approve(), reviewer(ANA)))
    again = say(first.approval, Approve(), reviewer(ANA))
    junior = changed(say(first.approval, Approve(), reviewer(BEN)))
    senior = changed(say(first.approval, Approve(), reviewer(CHLOE)))

    assert isinstance(first.waits_on, Voted)
    assert (first.waits_on.have, first.waits_on.need) == (1, 2)
    assert isinstance(again, Forbidden)
    assert junior.approval.items[0].state is ItemState.PENDING
    assert senior.approval.items[0].state is ItemState.AUTHORIZED


def test_an_edit_that_raises_the_tier_makes_its_editor_a_principal() -> None:
    raised = evaluation(Tier.ESCALATE, TWO)

    edited = changed(
        say(an_approval(), Edit(args=HALF), reviewer(ANA), policy_now=raised)
    )
    own = say(edited.approval, Approve(), reviewer(ANA))

    assert edited.approval.items[0].state is ItemState.PENDING
    assert edited.approval.items[0].tier is Tier.ESCALATE
    assert isinstance(edited.waits_on, Voted)
    assert edited.waits_on.have == 0
    assert isinstance(own, Forbidden)


def test_who_may_decide_a_call_may_change_it_into_one_that_is_for_others() -> None:
    either = Requirement(approvals=1, of=(SUPPORT, SENIOR))
    senior = Requirement(approvals=1, of=(SENIOR,))
    approval = an_approval(an_item(requirement=either))

    def said(decision: Decision, by: Person) -> Change | Outcome:
        return say(
            approval,
            decision,
            reviewer(by),
            policy_now=evaluation(Tier.APPROVE, senior),
            waiting_now=evaluation(Tier.APPROVE, either),
        )

    change = changed(said(Edit(args=HALF), ANA))
    refused = said(Edit(args=HALF), EVE)

    item = change.approval.items[0]
    assert (item.state, item.votes) == (ItemState.PENDING, ())
    assert item.requirement.roles == (SENIOR,)
    assert item.principals == (ANA,)
    assert isinstance(refused, Forbidden), "who may not decide the call as it waits"
    assert isinstance(said(Approve(), ANA), Forbidden)


def test_who_lost_the_role_by_the_policy_of_now_changes_nothing() -> None:
    either = Requirement(approvals=1, of=(SUPPORT, SENIOR))
    senior = evaluation(Tier.APPROVE, Requirement(approvals=1, of=(SENIOR,)))

    result = say(
        an_approval(an_item(requirement=either)),
        Edit(args=HALF),
        reviewer(ANA),
        policy_now=senior,
        waiting_now=senior,
    )

    assert isinstance(result, Forbidden)


def test_a_policy_that_denies_now_wins_over_the_frozen_one() -> None:
    denied = evaluation(Tier.DENY, ONE)

    approve = say(an_approval(), Approve(), reviewer(ANA), policy_now=denied)
    edit = say(an_approval(), Edit(args=HALF), reviewer(ANA), policy_now=denied)

    assert isinstance(approve, Forbidden)
    assert isinstance(edit, Invalid)


def test_a_reason_longer_than_slack_can_hold_is_refused() -> None:
    long = "x" * 3001

    for decision in (Reject(reason=long), Respond(message=long),
                     Edit(args=HALF, reason=long)):  # fmt: skip
        assert isinstance(say(an_approval(), decision, reviewer(ANA)), Invalid)


def test_an_edited_call_is_described_as_it_would_run() -> None:
    asked = an_item().with_(
        description="Refund 899", link="https://a.example/1", agent_description="Pay"
    )
    now = evaluation(Tier.APPROVE, ONE).with_(
        description="Refund 449.5", link="https://a.example/2"
    )

    change = changed(
        say(an_approval(asked), Edit(args=HALF), reviewer(ANA), policy_now=now)
    )

    item = change.approval.items[0]
    assert (item.description, item.link) == ("Refund 449.5", "https://a.example/2")
    assert not item.agent_description


@pytest.mark.parametrize(
    ("allow", "reason"),
    [
        ((Verb.APPROVE,), "Refunds are frozen."),
        ((Verb.APPROVE, Verb.REJECT), "Refunds are frozen. You can reject it now."),
    ],
)
def test_a_frozen_call_is_said_to_be_rejectable_only_where_it_is(
    allow: tuple[Verb, ...], reason: str
) -> None:
    frozen = PolicyDecision(
        tier=Tier.APPROVE,
        requirement=ONE,
        allow=allow,
        policy_digest="p",
        stopped="Refunds are frozen.",
    )
    approval = an_approval(an_item(allow=allow))

    outcome = say(approval, Approve(), reviewer(ANA), policy_now=frozen)

    assert outcome == Forbidden(reason=reason)


def test_an_edit_voids_the_votes_before_it_and_is_its_editors_own() -> None:
    approval = an_approval(an_item(requirement=TWO, tier=Tier.ESCALATE))
    first = changed(say(approval, Approve(), reviewer(CHLOE))).approval

    edited = changed(say(first, Edit(args=HALF), reviewer(ANA))).approval
    done = changed(say(edited, Approve(), reviewer(CHLOE))).approval.items[0]

    assert [vote.by for vote in edited.items[0].votes] == [ANA]
    assert done.state is ItemState.AUTHORIZED
    assert done.edit
