"""A delegate does not count as a second person."""

from __future__ import annotations

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Forbidden,
    Reject,
    Reviewer,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import ItemState
from tests.bot.samples import KIM, NOW, TEAM, a_refund, an_approval

SUPPORT = Role(name="support", users=("U0ANA", "U0CHLOE"))
SENIOR = Role(name="senior", users=("U0CHLOE",))
ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
ONE = Requirement(approvals=1, of=(SUPPORT,))
TWO = Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))


def person(user: str, *others: Reviewer) -> Reviewer:
    return Reviewer(
        team=TEAM, user=user, account=AccountKind.MEMBER, stands_in_for=others
    )


ANA, CHLOE, BEN = person("U0ANA"), person("U0CHLOE"), person("U0BEN")


def say(
    approval: Approval, who: Reviewer, decision: Approve | Reject
) -> Approval | Forbidden:
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.items[0].action_hash,
    )
    everybody = (ANA, BEN, CHLOE)
    result = decide(approval, click, decision, who, now_ms=NOW, voters=everybody)
    assert isinstance(result, Change | Forbidden)
    return result.approval if isinstance(result, Change) else result


def approve(approval: Approval, who: Reviewer) -> Approval | Forbidden:
    return say(approval, who, Approve())


def one(requirement: Requirement) -> Approval:
    return an_approval(a_refund(requirement=requirement))


def test_a_colleague_decides_for_a_reviewer_and_both_are_named() -> None:
    approval = approve(one(ONE), person("U0BEN", ANA))

    assert isinstance(approval, Approval)
    (item,) = approval.items
    assert item.state is ItemState.AUTHORIZED
    assert item.decision is not None
    assert item.decision.by == BEN.person
    assert item.decision.on_behalf_of == item.votes[0].on_behalf_of == (ANA.person,)


def test_a_requester_decides_for_nobody() -> None:
    assert isinstance(approve(one(ONE), person(KIM.user, ANA)), Forbidden)


def test_one_reviewer_and_who_stands_in_for_them_are_not_two() -> None:
    requirement = Requirement(approvals=2, of=(SUPPORT,))
    first = approve(one(requirement), ANA)
    assert isinstance(first, Approval)
    assert isinstance(approve(first, person("U0BEN", ANA)), Forbidden)

    other = approve(one(requirement), person("U0BEN", ANA))
    assert isinstance(other, Approval)
    assert isinstance(approve(other, ANA), Forbidden)
    assert isinstance(approve(other, person("U0EVE", ANA)), Forbidden)


def test_a_reviewer_who_stands_in_for_another_is_still_one_person() -> None:
    approval = approve(one(TWO), person("U0ANA", CHLOE))

    assert isinstance(approval, Approval)
    (item,) = approval.items
    assert item.is_pending
    assert len(item.votes) == 1
    assert item.votes[0].roles == ("support", "senior")
    assert isinstance(approve(approval, CHLOE), Forbidden)


def test_who_needs_nobodys_role_uses_up_nobodys_word() -> None:
    requirement = Requirement(approvals=2, of=(SUPPORT,))

    first = approve(one(requirement), person("U0ANA", CHLOE))

    assert isinstance(first, Approval)
    assert first.items[0].votes[0].on_behalf_of == ()
    second = approve(first, CHLOE)
    assert isinstance(second, Approval)
    assert second.items[0].state is ItemState.AUTHORIZED


def test_a_queue_is_not_handed_on_and_not_by_who_has_left() -> None:
    chain = person("U0EVE", person("U0BEN", ANA))
    gone = ANA.with_(account=AccountKind.DEACTIVATED)

    assert isinstance(approve(one(ONE), chain), Forbidden)
    assert isinstance(approve(one(ONE), person("U0BEN", gone)), Forbidden)
