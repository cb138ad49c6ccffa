"""While Slack does not answer who has a role, no decision relies on it."""

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
    Reviewer,
    Voted,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import Person, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    NOW_MS,
    an_approval,
    an_item,
    click_on,
)

SUPPORT = Role(name="support", users=("U0ANA",), usergroups=("S0SUPPORT",))
SENIOR = Role(name="senior", usergroups=("S0SENIOR",))
ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
TWO = Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))
ARGS: JsonObject = {"order_id": "78291", "amount": 5}


def person(
    who: Person,
    *groups: str,
    unknown: tuple[str, ...] = (),
    account: AccountKind = AccountKind.MEMBER,
    **more: object,
) -> Reviewer:
    return Reviewer(
        team=who.team,
        user=who.user,
        usergroups=frozenset(groups),
        unknown_groups=frozenset(unknown),
        account=account,
    ).with_(**more)


def say(
    approval: Approval, decision: Decision, by: Reviewer, *voters: Reviewer
) -> Change | Forbidden:
    result = decide(
        approval, click_on(approval), decision, by, now_ms=NOW_MS, voters=voters
    )
    assert isinstance(result, Change | Forbidden), result
    return result


def two_people() -> Approval:
    return an_approval(an_item(requirement=TWO, tier=Tier.ESCALATE))


@pytest.mark.parametrize("decision", [Approve(), Edit(args=ARGS)])
def test_no_vote_is_recorded_while_one_of_its_roles_is_open(decision: Decision) -> None:
    # Ana has the role support by id; Slack does not answer whether she is a senior as
    # well.
    ana = person(ANA, unknown=("S0SENIOR",), retry_in_s=20)

    result = say(two_people(), decision, ana)

    assert result == Forbidden(
        reason="Slack did not say who is in senior, so nothing was recorded. "
        "Please click again in 20 seconds."
    )


def test_a_group_that_the_requirement_does_not_name_may_stay_open() -> None:
    ana = person(ANA, "S0SENIOR", unknown=("S0OTHER", "S0SUPPORT"))

    assert isinstance(say(two_people(), Approve(), ana), Change)


def test_somebody_who_hands_over_a_queue_unknown_to_slack_leaves_their_roles_open() -> (
    None
):
    nobody = person(CHLOE, account=AccountKind.UNKNOWN)
    ana = person(ANA, stands_in_for=(nobody,))

    result = say(two_people(), Approve(), ana)

    assert isinstance(result, Forbidden)
    assert "who is in senior" in result.reason


@pytest.mark.parametrize(
    "again",
    [
        person(ANA, account=AccountKind.UNKNOWN, retry_in_s=7),
        person(BEN, unknown=("S0SUPPORT",), retry_in_s=7),
    ],
)
def test_the_last_vote_waits_until_slack_knows_the_earlier_ones(
    again: Reviewer,
) -> None:
    first = say(two_people(), Approve(), person(again.person, "S0SUPPORT"))
    assert isinstance(first, Change)
    chloe = person(CHLOE, "S0SENIOR")

    doubted = say(first.approval, Approve(), chloe, again)
    decided = say(first.approval, Approve(), chloe, person(again.person, "S0SUPPORT"))

    assert doubted == Forbidden(
        reason="Slack did not say who is in support, so nothing was recorded. "
        "Please click again in 7 seconds."
    )
    assert isinstance(decided, Change)
    assert decided.waits_on is None


@pytest.mark.parametrize(
    "again", [person(BEN), person(BEN, "S0SUPPORT", account=AccountKind.DEACTIVATED)]
)
def test_who_lost_the_role_since_counts_no_more_and_is_named(again: Reviewer) -> None:
    first = say(two_people(), Approve(), person(BEN, "S0SUPPORT"))
    assert isinstance(first, Change)

    second = say(first.approval, Approve(), person(CHLOE, "S0SENIOR"), again)

    assert isinstance(second, Change)
    assert isinstance(second.waits_on, Voted)
    assert (second.waits_on.have, second.waits_on.need) == (1, 2)
    assert second.events[-1].data["no_longer"] == "T0/U0BEN"


def test_a_second_click_adds_a_role_that_was_given_since_and_counts_once() -> None:
    first = say(two_people(), Approve(), person(ANA))
    assert isinstance(first, Change)
    second = say(first.approval, Approve(), person(BEN, "S0SUPPORT"), person(ANA))
    assert isinstance(second, Change)
    assert isinstance(second.waits_on, Voted)

    same = say(second.approval, Approve(), person(ANA), person(BEN, "S0SUPPORT"))
    more = say(
        second.approval, Approve(), person(ANA, "S0SENIOR"), person(BEN, "S0SUPPORT")
    )

    assert isinstance(same, Forbidden)
    assert "You already approved" in same.reason
    assert isinstance(more, Change)
    assert more.waits_on is None
    assert [vote.by.user for vote in more.approval.items[0].votes] == [
        BEN.user,
        ANA.user,
    ]


def test_a_vote_carries_the_age_of_the_oldest_answer_it_rests_on() -> None:
    chloe = person(CHLOE, "S0SENIOR", membership_age_ms=9_000)
    ana = person(ANA, membership_age_ms=2_000, stands_in_for=(chloe,))

    result = say(two_people(), Approve(), ana)

    assert isinstance(result, Change)
    assert result.approval.items[0].votes[0].membership_at_ms == NOW_MS - 9_000
