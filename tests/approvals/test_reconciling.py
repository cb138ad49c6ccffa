"""A doubt ends when those whom the call takes found the same, and not before."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import MAX_TEXT, decide
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Click,
    Forbidden,
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
    NOW_MS,
    ONE,
    SENIOR,
    SUPPORT,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
GROUPS = SUPPORT.with_(users=(), usergroups=("S0SUPPORT",))
TWO = Requirement(approvals=2, of=(GROUPS, SENIOR), also=(ONE_SENIOR,))
POLICY_NOW = PolicyDecision(
    tier=Tier.APPROVE, requirement=ONE, policy_digest="sha256:1"
)


def doubtful(requirement: Requirement = ONE) -> Approval:
    item = an_item(requirement=requirement)
    return an_approval(
        item.with_(state=ItemState.IN_DOUBT, fence=1, result=Result(ok=False))
    )


def in_support(person: Reviewer) -> Reviewer:
    return person.with_(usergroups=frozenset({"S0SUPPORT"}))


def say(
    approval: Approval,
    who: Reviewer,
    *voters: Reviewer,
    finding: Finding = Finding.EXECUTED,
    note: str = "",
    click: Click | None = None,
    policy_now: PolicyDecision | None = None,
) -> Change | Outcome:
    return decide(
        approval,
        click or click_on(approval),
        Reconcile(finding=finding, note=note),
        who,
        now_ms=NOW_MS,
        policy_now=policy_now,
        voters=voters,
    )


def noted(result: Change | Outcome) -> Change:
    assert isinstance(result, Change), result
    return result


@pytest.mark.parametrize("state", sorted(set(ItemState) - {ItemState.IN_DOUBT}))
def test_only_a_doubt_is_reconciled(state: ItemState) -> None:
    approval = an_approval(an_item().with_(state=state))

    assert say(approval, reviewer(ANA)) == Stale(state=state)


def test_a_note_longer_than_slack_takes_is_refused() -> None:
    noted(say(doubtful(), reviewer(ANA), note="x" * MAX_TEXT))

    assert say(doubtful(), reviewer(ANA), note="x" * (MAX_TEXT + 1)) == Invalid(
        errors={"/note": "This is 3001 characters, 3000 are allowed."}
    )


@pytest.mark.parametrize(
    "again",
    [
        reviewer(ANA, AccountKind.UNKNOWN),
        reviewer(ANA).with_(unknown_groups=frozenset({"S0SUPPORT"})),
    ],
)
def test_the_last_word_waits_until_slack_knows_who_spoke_before(
    again: Reviewer,
) -> None:
    first = noted(say(doubtful(TWO), in_support(reviewer(ANA)))).approval

    found = say(first, reviewer(CHLOE), again)

    assert isinstance(found, Forbidden)
    assert found.reason.startswith("Slack did not say who is in support, so nothing")


@pytest.mark.parametrize(
    "again", [reviewer(ANA), in_support(reviewer(ANA, AccountKind.DEACTIVATED))]
)
def test_who_lost_the_role_since_counts_no_more(again: Reviewer) -> None:
    first = noted(say(doubtful(TWO), in_support(reviewer(ANA)))).approval

    second = noted(say(first, reviewer(CHLOE), again))
    third = noted(say(first, reviewer(CHLOE), in_support(reviewer(ANA))))

    assert isinstance(second.waits_on, Voted)
    assert second.approval.items[0].state is ItemState.IN_DOUBT
    assert (third.waits_on, third.approval.items[0].state) == (None, ItemState.EXECUTED)


@pytest.mark.parametrize(
    ("policy_now", "reason"),
    [
        (POLICY_NOW, None),
        (POLICY_NOW.with_(tier=Tier.DENY), "no longer allows this call"),
        (POLICY_NOW.with_(allow=(Verb.REJECT,)), "no longer allows this call"),
        (POLICY_NOW.with_(stopped="All calls are stopped."), "All calls are stopped."),
    ],
)
def test_nothing_runs_again_that_the_policy_of_now_forbids(
    policy_now: PolicyDecision, reason: str | None
) -> None:
    found = say(doubtful(), reviewer(BEN), finding=Finding.RERUN, policy_now=policy_now)
    left = say(doubtful(), reviewer(BEN), finding=Finding.SKIP, policy_now=policy_now)

    assert noted(left).approval.items[0].state is ItemState.FAILED
    if reason is None:
        assert noted(found).approval.items[0].state is ItemState.AUTHORIZED
    else:
        assert isinstance(found, Forbidden)
        assert reason in found.reason
