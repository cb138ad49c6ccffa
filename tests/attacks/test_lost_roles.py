"""A policy that removes a person also removes the votes of the person's delegates."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reviewer
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.approvals.revoking import revoke
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    NOW_MS,
    SENIOR,
    SUPPORT,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
NIGHT = Role(name="night", users=(BEN.user,), usergroups=("S0NIGHT",))


def said(
    approval: Approval,
    decision: Decision,
    by: Reviewer,
    policy_now: PolicyDecision | None = None,
) -> Approval:
    voters = [reviewer(vote.by) for vote in approval.items[0].votes]
    change = decide(
        approval,
        click_on(approval),
        decision,
        by,
        now_ms=NOW_MS,
        policy_now=policy_now,
        voters=voters,
    )
    assert isinstance(change, Change), change
    return change.approval


def current_decision(requirement: Requirement) -> PolicyDecision:
    return PolicyDecision(
        tier=Tier.APPROVE, reasons=(), requirement=requirement, policy_digest="p"
    )


def test_a_role_that_was_taken_from_somebody_is_taken_from_who_stood_in() -> None:
    before = Requirement(approvals=1, of=(NIGHT,))
    without_ben = Requirement(approvals=1, of=(NIGHT.with_(users=()),))
    chloe = reviewer(CHLOE).with_(stands_in_for=(reviewer(BEN),))
    done = said(an_approval(an_item(requirement=before)), Approve(), chloe)
    item = done.items[0]
    assert item.state is ItemState.AUTHORIZED

    back = revoke(done, item, current_decision(without_ben), now_ms=NOW_MS)

    assert back is not None
    assert back.approval.items[0].is_pending


@pytest.mark.parametrize("is_at_claim", [True, False])
def test_nobody_stands_in_for_who_changed_the_call_and_may_not_approve_it(
    *, is_at_claim: bool
) -> None:
    loose = Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))
    strict = loose.with_(editor_may_vote=False)
    half = Edit(args={"order_id": "78291", "amount": 449.5})
    edited = said(an_approval(an_item(requirement=loose)), half, reviewer(CHLOE))
    if is_at_claim:
        done = said(edited, Approve(), reviewer(BEN))
        back = revoke(done, done.items[0], current_decision(strict), now_ms=NOW_MS)
        assert back is not None
        again = back.approval
    else:
        again = said(edited, Approve(), reviewer(BEN), current_decision(strict))
    assert again.items[0].is_pending

    ana = reviewer(ANA).with_(stands_in_for=(reviewer(CHLOE),))
    last = said(again, Approve(), ana, current_decision(strict))

    # Of the seniors only Chloé, who changed it, has seen this.
    assert last.items[0].is_pending
