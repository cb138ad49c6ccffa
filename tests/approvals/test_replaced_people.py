"""A card whose reviewers were replaced in the policy can still be ended."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    Approve,
    Decision,
    Forbidden,
    Outcome,
    Reject,
    Reviewer,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.quorum import NOBODY, is_possible
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import ItemState, Person, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    DAN,
    NOW_MS,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

THEN = Requirement(approvals=1, of=(Role(name="reviewers", users=(ANA.user,)),))
NOW = Requirement(approvals=1, of=(Role(name="reviewers", users=(BEN.user,)),))
BOTH = Requirement(
    approvals=1, of=(Role(name="reviewers", users=(ANA.user, BEN.user)),)
)


def say(decision: Decision, by: Reviewer, now: Requirement = NOW) -> Change | Outcome:
    approval = an_approval(an_item(requirement=THEN))
    policy_now = PolicyDecision(
        tier=Tier.APPROVE, reasons=(), requirement=now, policy_digest="p"
    )
    return decide(
        approval, click_on(approval), decision, by, now_ms=NOW_MS, policy_now=policy_now
    )


@pytest.mark.parametrize("person", [ANA, BEN])
def test_the_replaced_and_the_new_reviewer_may_both_reject(person: Person) -> None:
    change = say(Reject(reason="no"), reviewer(person))

    assert isinstance(change, Change)
    assert change.approval.items[0].state is ItemState.REJECTED


@pytest.mark.parametrize("person", [ANA, BEN])
def test_neither_may_approve_and_both_are_told_why_and_what_they_can_do(
    person: Person,
) -> None:
    refused = say(Approve(), reviewer(person))

    assert isinstance(refused, Forbidden)
    assert refused.reason == f"{NOBODY} You can still reject it."


def test_who_is_in_both_circles_decides_as_before() -> None:
    change = say(Approve(), reviewer(ANA), now=BOTH)
    refused = say(Approve(), reviewer(BEN), now=BOTH)

    assert isinstance(change, Change)
    assert change.approval.items[0].state is ItemState.AUTHORIZED
    assert isinstance(refused, Forbidden)
    assert NOBODY not in refused.reason


def test_a_policy_that_did_not_change_is_not_blamed() -> None:
    asked_by_the_only_reviewer = Requirement(
        approvals=1, of=(Role(name="reviewers", users=(DAN.user,)),)
    )
    approval = an_approval(an_item(requirement=asked_by_the_only_reviewer))

    refused = decide(
        approval, click_on(approval), Approve(), reviewer(DAN), now_ms=NOW_MS
    )

    assert isinstance(refused, Forbidden)
    assert NOBODY not in refused.reason


@pytest.mark.parametrize(
    ("requirement", "barred", "possible"),
    [
        (BOTH, (), True),
        (BOTH, (ANA,), True),
        (BOTH, (ANA, BEN), False),
        (BOTH.with_(approvals=2), (), True),
        (BOTH.with_(approvals=2), (ANA,), False),
        (Requirement(approvals=1, of=(Role(name="nobody"),)), (), False),
        (
            Requirement(approvals=9, of=(Role(name="g", usergroups=("S1",)),)),
            (ANA,),
            True,
        ),
        (THEN.with_(also=(Requirement(approvals=1, of=(Role(name="x"),)),)), (), False),
    ],
)
def test_whether_enough_people_are_named_is_counted_without_those_barred(
    requirement: Requirement, barred: tuple[Person, ...], *, possible: bool
) -> None:
    assert is_possible(requirement, barred) is possible
