"""Votes count while Slack and the policy give their people the role."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decision,
    Edit,
    Forbidden,
    Reject,
    Reviewer,
    Voted,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.quality_checks import NOT_YOU, refusal
from keyturn.gateway.approvals.quorum import NOBODY, is_possible
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role, SpotCheck, Vote
from keyturn.gateway.approvals.revoking import FORBIDDEN, NEEDS_MORE, TOO_OLD, revoke
from keyturn.gateway.approvals.revoking import NOBODY as NOBODY_BOTH
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.approvals import builders
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    EVE,
    NOW_MS,
    an_approval,
    an_item,
    changed,
    evaluation,
    forbidden,
    left,
    reviewer,
    say,
)

SUPPORT = Role(name="support", users=("U0ANA",), usergroups=("S0SUPPORT",))
SENIOR = Role(name="senior", usergroups=("S0SENIOR",))
ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
TWO = Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))
ARGS: JsonObject = {"order_id": "78291", "amount": 5}


def person(who: Person, *groups: str, unknown: str = "", **more: object) -> Reviewer:
    """Return a member of these user groups; Slack does not answer about another."""
    groups_unknown = frozenset({unknown} if unknown else ())
    return reviewer(who).with_(
        usergroups=frozenset(groups), unknown_groups=groups_unknown, **more
    )


def two_people() -> Approval:
    return an_approval(an_item(requirement=TWO, tier=Tier.ESCALATE))


@pytest.mark.parametrize("decision", [Approve(), Edit(args=ARGS)])
def test_no_vote_is_recorded_while_one_of_its_roles_is_open(decision: Decision) -> None:
    # Ana has the role support by id; Slack does not answer whether she is a senior as
    # well.
    ana = person(ANA, unknown="S0SENIOR", retry_in_s=20)
    assert forbidden(say(two_people(), decision, ana)) == (
        "It could not be checked who is in senior, so nothing was recorded. "
        "Please try again in 20 seconds."
    )
    eve = person(EVE, unknown="S0SUPPORT")
    assert "who is in support" in forbidden(say(two_people(), decision, eve))
    other = person(ANA, "S0SENIOR", unknown="S0SUPPORT")
    assert left(say(two_people(), decision, other)).votes


def test_a_delegator_unknown_to_slack_leaves_their_roles_open() -> None:
    ana = person(ANA, stands_in_for=(person(CHLOE, account=AccountKind.UNKNOWN),))
    assert "who is in senior" in forbidden(say(two_people(), Approve(), ana))


@pytest.mark.parametrize(
    "again",
    [
        person(ANA, retry_in_s=7, account=AccountKind.UNKNOWN),
        person(BEN, unknown="S0SUPPORT", retry_in_s=7),
    ],
)
def test_the_last_vote_waits_for_slack_to_know_the_others(again: Reviewer) -> None:
    before = person(again.person, "S0SUPPORT")
    first = changed(say(two_people(), Approve(), before)).approval
    chloe = person(CHLOE, "S0SENIOR")

    assert forbidden(say(first, Approve(), chloe, voters=[again])) == (
        "It could not be checked who is in support, so nothing was recorded. "
        "Please try again in 7 seconds."
    )
    assert changed(say(first, Approve(), chloe, voters=[before])).waits_on is None


@pytest.mark.parametrize(
    "again", [person(BEN), person(BEN, "S0SUPPORT", account=AccountKind.DEACTIVATED)]
)
def test_who_lost_the_role_since_counts_no_more_and_is_named(again: Reviewer) -> None:
    first = changed(say(two_people(), Approve(), person(BEN, "S0SUPPORT"))).approval
    chloe = person(CHLOE, "S0SENIOR")

    second = changed(say(first, Approve(), chloe, voters=[again]))

    assert isinstance(second.waits_on, Voted)
    assert (second.waits_on.have, second.waits_on.need) == (1, 2)
    assert second.events[-1].data["no_longer"] == "T0/U0BEN"


def test_a_second_click_adds_a_role_that_was_given_since_and_counts_once() -> None:
    ben = person(BEN, "S0SUPPORT")
    first = changed(say(two_people(), Approve(), person(ANA))).approval
    second = changed(say(first, Approve(), ben, voters=[person(ANA)])).approval

    same = say(second, Approve(), person(ANA), voters=[ben])
    more = left(say(second, Approve(), person(ANA, "S0SENIOR"), voters=[ben]))

    assert "You already approved" in forbidden(same)
    assert more.state is ItemState.AUTHORIZED
    assert [vote.by.user for vote in more.votes] == [BEN.user, ANA.user]


def test_a_vote_carries_the_age_of_the_oldest_answer_it_rests_on() -> None:
    chloe = person(CHLOE, "S0SENIOR", membership_age_ms=9_000)
    ana = person(ANA, membership_age_ms=2_000, stands_in_for=(chloe,))
    [vote] = left(say(two_people(), Approve(), ana)).votes
    assert vote.membership_at_ms == NOW_MS - 9_000


# A card whose reviewers were replaced in the policy can still be ended.


def named(*people: Person) -> Requirement:
    users = tuple(one.user for one in people)
    return Requirement(approvals=1, of=(Role(name="reviewers", users=users),))


def replaced(decision: Decision, by: Person, now: Requirement) -> object:
    approval = an_approval(an_item(requirement=named(ANA)))
    return say(approval, decision, by, policy_now=evaluation(requirement=now))


@pytest.mark.parametrize("one", [ANA, BEN])
def test_replaced_and_new_reviewers_may_reject_and_are_told_so(one: Person) -> None:
    assert left(replaced(Reject(), one, named(BEN))).state is ItemState.REJECTED
    refused = forbidden(replaced(Approve(), one, named(BEN)))
    assert refused == f"{NOBODY} You can still reject it."


def test_who_is_in_both_circles_decides_as_before() -> None:
    both = named(ANA, BEN)
    assert left(replaced(Approve(), ANA, both)).state is ItemState.AUTHORIZED
    assert NOBODY not in forbidden(replaced(Approve(), BEN, both))


def test_a_policy_that_did_not_change_is_not_blamed() -> None:
    asked_by_the_only_reviewer = an_approval(an_item(requirement=named(DAN)))
    assert NOBODY not in forbidden(say(asked_by_the_only_reviewer, Approve(), DAN))


BOTH = named(ANA, BEN)
NOBODY_NAMED = Requirement(approvals=1, of=(Role(name="nobody"),))
OF_A_GROUP = Requirement(approvals=9, of=(Role(name="g", usergroups=("S1",)),))


@pytest.mark.parametrize(
    ("requirement", "barred", "possible"),
    [
        (BOTH, (ANA,), True),
        (BOTH, (ANA, BEN), False),
        (BOTH.with_(approvals=2), (), True),
        (BOTH.with_(approvals=2), (ANA,), False),
        (NOBODY_NAMED, (), False),
        (OF_A_GROUP, (ANA,), True),
        (BOTH.with_(also=(NOBODY_NAMED,)), (), False),
    ],
)
def test_whether_enough_people_are_named_is_counted_without_those_barred(
    requirement: Requirement, barred: tuple[Person, ...], *, possible: bool
) -> None:
    assert is_possible(requirement, barred) is possible


# A delegate does not count as a second person.

PEOPLE = Role(name="support", users=("U0ANA", "U0CHLOE"))
LEAD = Role(name="senior", users=("U0CHLOE",))
TWO_OF_THEM = Requirement(approvals=2, of=(PEOPLE,))


def for_(who: Person, *others: Reviewer) -> Reviewer:
    return reviewer(who).with_(stands_in_for=others)


def approve(approval: Approval, who: Reviewer) -> object:
    everybody = [reviewer(one) for one in (ANA, BEN, CHLOE)]
    result = say(approval, Approve(), who, voters=everybody)
    return result if isinstance(result, Forbidden) else changed(result)


def of(requirement: Requirement) -> Approval:
    return an_approval(an_item(requirement=requirement))


ONE_OF_THEM = of(Requirement(approvals=1, of=(PEOPLE,)))


def test_a_colleague_decides_for_a_reviewer_and_both_are_named() -> None:
    item = left(approve(ONE_OF_THEM, for_(BEN, reviewer(ANA))))
    assert item.state is ItemState.AUTHORIZED
    assert item.decision is not None
    assert item.decision.by == BEN
    assert item.decision.on_behalf_of == item.votes[0].on_behalf_of == (ANA,)


def test_one_reviewer_and_who_stands_in_for_them_are_not_two() -> None:
    ben = for_(BEN, reviewer(ANA))
    for first, *others in (
        (reviewer(ANA), ben),
        (ben, reviewer(ANA), for_(EVE, reviewer(ANA))),
    ):
        once = changed(approve(of(TWO_OF_THEM), first)).approval
        for other in others:
            forbidden(approve(once, other))


def test_a_reviewer_who_stands_in_for_another_is_still_one_person() -> None:
    both = Requirement(
        approvals=2, of=(PEOPLE, LEAD), also=(Requirement(approvals=1, of=(LEAD,)),)
    )
    change = changed(approve(of(both), for_(ANA, reviewer(CHLOE))))
    [item] = change.approval.items
    assert item.is_pending
    assert [vote.roles for vote in item.votes] == [("support", "senior")]
    forbidden(approve(change.approval, reviewer(CHLOE)))


def test_who_needs_nobodys_role_uses_up_nobodys_word() -> None:
    first = changed(approve(of(TWO_OF_THEM), for_(ANA, reviewer(CHLOE)))).approval
    assert first.items[0].votes[0].on_behalf_of == ()
    second = left(approve(first, reviewer(CHLOE)))
    assert second.state is ItemState.AUTHORIZED


@pytest.mark.parametrize(
    "who",
    [
        for_(DAN, reviewer(ANA)),
        for_(EVE, for_(BEN, reviewer(ANA))),
        for_(BEN, reviewer(ANA, AccountKind.DEACTIVATED)),
    ],
    ids=["the requester", "handed on", "of somebody who has left"],
)
def test_a_queue_of_another_is_not_used_by(who: Reviewer) -> None:
    forbidden(approve(ONE_OF_THEM, who))


# The claim looks whether the policy still gives a voter the role.

DAY = Role(name="day", users=(ANA.user,), usergroups=("S0DAY",))


def one_of(role: Role) -> Requirement:
    return Requirement(approvals=1, of=(role,))


@pytest.mark.parametrize(
    ("by", "instead_of", "now", "counts"),
    [
        (ANA, (), DAY, True),
        (ANA, (), DAY.with_(users=(BEN.user,)), False),
        (ANA, (), DAY.with_(usergroups=()), True),
        # Ben is in the user group: whether he still is, the claim does not ask.
        (BEN, (), DAY.with_(users=()), True),
        (BEN, (), DAY.with_(usergroups=()), False),
        (BEN, (), DAY.with_(name="night"), False),
        # Dan was Ana's delegate.
        (DAN, (ANA,), DAY, True),
        (DAN, (ANA,), DAY.with_(users=()), False),
    ],
)
def test_a_vote_counts_while_the_policy_gives_its_role(
    by: Person, instead_of: tuple[Person, ...], now: Role, *, counts: bool
) -> None:
    item = an_item(requirement=one_of(DAY))
    vote = Vote(
        by=by,
        roles=("day",),
        action_hash=item.action_hash,
        at_ms=1,
        on_behalf_of=instead_of,
    )
    item = item.with_(state=ItemState.AUTHORIZED, votes=(vote,))
    policy_now = evaluation(requirement=one_of(now))
    change = revoke(an_approval(item), item, policy_now, now_ms=NOW_MS)
    assert (change is None) is counts


WITHOUT_ANA = Role(name="support", users=("U0BEN",))
BY_EVE = Role(name="support", users=("U0EVE",))
LATE_MS = NOW_MS + 10 * 60_000


@pytest.mark.parametrize(
    ("policy_now", "state", "reason"),
    [
        (evaluation(Tier.AUTO), ItemState.AUTHORIZED, ""),
        (evaluation(Tier.DENY), ItemState.LAPSED, FORBIDDEN),
        (evaluation(allow=(Verb.REJECT,)), ItemState.LAPSED, FORBIDDEN),
        (evaluation(authorization_ms=5 * 60_000), ItemState.LAPSED, TOO_OLD),
        (evaluation(requirement=one_of(BY_EVE)), ItemState.LAPSED, NOBODY_BOTH),
        (evaluation(Tier.ESCALATE, TWO), ItemState.PENDING, NEEDS_MORE),
        (evaluation(requirement=one_of(WITHOUT_ANA)), ItemState.PENDING, NEEDS_MORE),
        (evaluation(requirement=one_of(SENIOR)), ItemState.PENDING, NEEDS_MORE),
    ],
)
def test_an_approved_call_is_evaluated_anew_at_its_claim(
    policy_now: PolicyDecision, state: ItemState, reason: str
) -> None:
    approved = changed(say(an_approval(), Approve())).approval

    change = revoke(approved, approved.items[0], policy_now, now_ms=LATE_MS)

    item = (change.approval if change else approved).items[0]
    assert item.state is state
    assert (item.revoked.reason if item.revoked else "") == reason


def test_a_spot_check_is_answered_by_who_holds_the_role_as_far_as_slack_knows() -> None:
    check = SpotCheck(of=(SENIOR,), asked_at_ms=NOW_MS)
    item = an_item().with_(state=ItemState.EXECUTED, spot_check=check)

    def said_to(who: Reviewer) -> str | None:
        return refusal(an_approval(item), item, who, (SENIOR,))

    assert said_to(person(EVE, "S0SENIOR")) is None
    assert said_to(reviewer(EVE)) == NOT_YOU
    assert said_to(person(EVE, unknown="S0SENIOR")) == (
        "It could not be checked who is in senior, so nothing was recorded. "
        "Please try again in a moment."
    )


@pytest.mark.parametrize("is_at_claim", [True, False])
def test_nobody_stands_in_for_somebody_who_may_not_vote(*, is_at_claim: bool) -> None:
    seniors = builders.SENIOR.with_(users=("U0CHLOE", "U0EVE"))
    one = Requirement(approvals=1, of=(seniors,))
    loose = Requirement(approvals=2, of=(builders.SUPPORT, seniors), also=(one,))
    strict = evaluation(requirement=loose.with_(editor_may_vote=False))
    half = Edit(args={"order_id": "78291", "amount": 449.5})
    edited = changed(say(of(loose), half, CHLOE)).approval
    if is_at_claim:
        done = changed(say(edited, Approve(), BEN)).approval
        back = revoke(done, done.items[0], strict, now_ms=NOW_MS)
        again = changed(back).approval
    else:
        again = changed(say(edited, Approve(), BEN, policy_now=strict)).approval
    assert again.items[0].is_pending
    last = say(again, Approve(), for_(ANA, reviewer(CHLOE)), policy_now=strict)
    # Of the seniors only Chloé, who changed it, has seen this.
    assert left(last).is_pending
