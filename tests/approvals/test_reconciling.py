"""A doubt ends when those whom the call takes found the same, and not before."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import MAX_TEXT
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Invalid,
    Outcome,
    Reconcile,
    Reviewer,
    Stale,
    Voted,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import Finding, ItemState, Result, Tier, Verb
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    ONE,
    ONE_SENIOR,
    SENIOR,
    SUPPORT,
    an_approval,
    an_item,
    changed,
    evaluation,
    forbidden,
    left,
    reviewer,
    say,
)

GROUPS = SUPPORT.with_(users=(), usergroups=("S0SUPPORT",))
TWO = Requirement(approvals=2, of=(GROUPS, SENIOR), also=(ONE_SENIOR,))
IN_SUPPORT = reviewer(ANA).with_(usergroups=frozenset({"S0SUPPORT"}))


def doubtful(requirement: Requirement = ONE) -> Approval:
    item = an_item(requirement=requirement)
    return an_approval(
        item.with_(state=ItemState.IN_DOUBT, fence=1, result=Result(ok=False))
    )


def found(
    approval: Approval,
    who: Reviewer,
    *voters: Reviewer,
    finding: Finding = Finding.EXECUTED,
    note: str = "",
    policy_now: PolicyDecision | None = None,
) -> Change | Outcome:
    said = Reconcile(finding=finding, note=note)
    return say(approval, said, who, policy_now=policy_now, voters=voters)


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.IN_DOUBT}))
def test_only_a_doubt_is_reconciled(state: ItemState) -> None:
    approval = an_approval(an_item().with_(state=state))
    assert found(approval, reviewer(ANA)) == Stale(item=approval.items[0])


def test_a_note_longer_than_slack_takes_is_refused() -> None:
    changed(found(doubtful(), reviewer(ANA), note="x" * MAX_TEXT))
    assert found(doubtful(), reviewer(ANA), note="x" * (MAX_TEXT + 1)) == Invalid(
        errors={"/note": "This is 3001 characters, 3000 are allowed."}
    )


@pytest.mark.parametrize(
    "again",
    [
        reviewer(ANA, AccountKind.UNKNOWN),
        reviewer(ANA).with_(unknown_groups=frozenset({"S0SUPPORT"})),
    ],
)
def test_the_last_finding_waits_for_slack_to_know_the_others(again: Reviewer) -> None:
    first = changed(found(doubtful(TWO), IN_SUPPORT)).approval
    reason = forbidden(found(first, reviewer(CHLOE), again))
    assert reason.startswith("Slack did not say who is in support, so nothing")


@pytest.mark.parametrize(
    "again", [reviewer(ANA), IN_SUPPORT.with_(account=AccountKind.DEACTIVATED)]
)
def test_who_lost_the_role_since_counts_no_more(again: Reviewer) -> None:
    first = changed(found(doubtful(TWO), IN_SUPPORT)).approval
    second = changed(found(first, reviewer(CHLOE), again))
    assert isinstance(second.waits_on, Voted)
    assert second.approval.items[0].state is ItemState.IN_DOUBT
    third = found(first, reviewer(CHLOE), IN_SUPPORT)
    assert left(third).state is ItemState.EXECUTED


@pytest.mark.parametrize(
    ("policy_now", "reason"),
    [
        (evaluation(), None),
        (evaluation(Tier.DENY), "no longer allows this call"),
        (evaluation(allow=(Verb.REJECT,)), "no longer allows this call"),
        (evaluation(stopped="All calls are stopped."), "All calls are stopped."),
    ],
)
def test_nothing_runs_again_that_the_policy_of_now_forbids(
    policy_now: PolicyDecision, reason: str | None
) -> None:
    ben = reviewer(BEN)
    again = found(doubtful(), ben, finding=Finding.RERUN, policy_now=policy_now)
    skipped = found(doubtful(), ben, finding=Finding.SKIP, policy_now=policy_now)
    assert left(skipped).state is ItemState.FAILED
    if reason is None:
        assert left(again).state is ItemState.AUTHORIZED
    else:
        assert reason in forbidden(again)
