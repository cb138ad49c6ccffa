"""Who must agree, and whether they have."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change, first_of
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from keyturn.gateway.approvals.quorum import asks_more, roles_of, stricter, tally
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Floor, Requirement, Role, Vote
from keyturn.gateway.protocol.records import ItemState, Person, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    HOUR_MS,
    NOW_MS,
    ONE,
    ONE_SENIOR,
    SENIOR,
    SUPPORT,
    TWO,
    an_approval,
    an_item,
    evaluation,
    reviewer,
    say,
)
from tests.levels import examples

HASH = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def vote(by: Person, *roles: str, action_hash: str = HASH) -> Vote:
    return Vote(by=by, roles=roles, action_hash=action_hash, at_ms=1)


@pytest.mark.parametrize(
    ("votes", "have", "is_met"),
    [
        ([], 0, False),
        ([vote(ANA, "support")], 1, False),
        ([vote(ANA, "support"), vote(BEN, "support")], 2, False),
        ([vote(ANA, "support"), vote(CHLOE, "senior")], 2, True),
        ([vote(CHLOE, "senior"), vote(CHLOE, "senior")], 1, False),
        (
            [vote(CHLOE, "senior"), vote(CHLOE.with_(team="E0ORG"), "senior")],
            1,
            False,
        ),
        ([vote(ANA, "support"), vote(CHLOE, "senior", action_hash=OTHER)], 1, False),
        ([vote(ANA), vote(CHLOE, "senior")], 1, False),
    ],
)
def test_people_count_per_action(votes: list[Vote], have: int, *, is_met: bool) -> None:
    count = tally(TWO, votes, HASH)

    assert (count.have, count.is_met) == (have, is_met)


def test_a_person_in_two_roles_is_one_vote_that_holds_both() -> None:
    requirement = Requirement(approvals=1, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))

    count = tally(requirement, [vote(CHLOE, "support", "senior")], HASH)

    assert count.is_met


def test_the_lacking_role_is_named() -> None:
    assert tally(TWO, [vote(ANA, "support")], HASH).lacking == {"senior": 1}


def test_roles_come_from_ids_and_groups_and_never_from_names() -> None:
    impostor = reviewer(Person(team="T0", user="U0EVE", name="U0CHLOE"))

    assert roles_of(impostor, [SUPPORT, SENIOR]) == ()
    assert roles_of(reviewer(CHLOE), [SUPPORT, SENIOR]) == ("senior",)


def test_of_two_lists_of_one_role_only_people_on_both_count() -> None:
    smaller = Role(name="support", users=("U0BEN",))

    both = stricter(
        Requirement(approvals=1, of=(SUPPORT,)), Requirement(approvals=2, of=(smaller,))
    )

    assert both == Requirement(approvals=2, of=(smaller,))


def test_an_escalation_asks_for_what_was_frozen_and_for_more() -> None:
    both = stricter(Requirement(approvals=1, of=(SUPPORT,)), TWO)

    seniors = [vote(CHLOE, "senior"), vote(BEN, "senior")]
    mixed = [vote(CHLOE, "senior"), vote(ANA, "support")]
    assert not tally(both, seniors, HASH).is_met
    assert tally(both, seniors, HASH).lacking == {"support": 1}
    assert tally(both, mixed, HASH).is_met


ROLES = st.builds(
    Role,
    name=st.sampled_from("abc"),
    users=st.lists(st.sampled_from(["U1", "U2", "U3"]), unique=True).map(tuple),
)
REQUIREMENTS = st.builds(
    Requirement,
    approvals=st.integers(1, 3),
    of=st.lists(ROLES, max_size=3, unique_by=lambda role: role.name).map(tuple),
    also=st.lists(
        st.builds(Requirement, approvals=st.integers(1, 2), of=st.tuples(ROLES)),
        max_size=2,
    ).map(tuple),
)


@given(REQUIREMENTS, REQUIREMENTS, st.sets(st.sampled_from(["U1", "U2", "U3"])))
def test_no_votes_meet_a_stricter_demand_and_not_both_of_its_parents(
    first: Requirement, second: Requirement, voters: set[str]
) -> None:
    both = stricter(first, second)
    people = [Person(team="T0", user=user) for user in sorted(voters)]

    votes = [vote(person, *roles_of(reviewer(person), both.roles)) for person in people]

    if tally(both, votes, HASH).is_met:
        assert tally(first, votes, HASH).is_met
        assert tally(second, votes, HASH).is_met


# No decision, policy or passing of time lowers a call's requirement.


DEMANDS = {
    **dict.fromkeys(Tier, Requirement(approvals=1, of=(SUPPORT, SENIOR))),
    Tier.APPROVE: ONE,
    Tier.ESCALATE: TWO,
}
EDITS = [Edit(args={"order_id": "1", "amount": n}, reason="x") for n in (1, 2, 900)]
SAID: st.SearchStrategy[Decision] = st.sampled_from(
    [Approve(), Approve(), *EDITS, Reject(reason="no")]
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([ANA, BEN, CHLOE, DAN]),
        SAID,
        st.sampled_from(Tier),
        st.integers(0, HOUR_MS // 4),
    ),
    max_size=8,
)


@settings(max_examples=examples(400), deadline=None)
@example(
    Tier.APPROVE,
    [
        (ANA, Approve(), Tier.ESCALATE, 0),
        (ANA, Reject(reason="no"), Tier.ESCALATE, 0),
    ],
)
@given(st.sampled_from([Tier.APPROVE, Tier.ESCALATE]), STEPS)
def test_no_vote_edit_policy_or_time_lowers_a_tier_or_what_it_demands(
    tier: Tier, steps: list[tuple[Person, Decision, Tier, int]]
) -> None:
    approval: Approval = an_approval(an_item(tier=tier, requirement=DEMANDS[tier]))
    now_ms = NOW_MS
    for person, decision, today, passed_ms in steps:
        now_ms += passed_ms
        before = approval.items[0]
        # Each tier is of another policy.
        now = evaluation(today, DEMANDS[today], policy_digest=today.value)
        result = say(approval, decision, person, now_ms=now_ms, policy_now=now)
        if not isinstance(result, Change):
            continue
        after, approval = result.approval.items[0], result.approval
        assert after.tier.rank >= before.tier.rank
        assert not asks_more(before.requirement, after.requirement)
        if after.state is ItemState.AUTHORIZED:
            strictest = max(before.tier.rank, today.rank)
            voices = {vote.by.user for vote in after.votes}
            assert today is not Tier.DENY
            assert now_ms < approval.expires_at_ms
            if strictest >= Tier.ESCALATE.rank:
                assert len(voices) >= 2
                assert "U0CHLOE" in voices


def test_another_policy_than_the_one_that_raised_a_call_lowers_nothing() -> None:
    now = evaluation()
    floor = Floor(
        tier=now.tier, reasons=(), requirement=ONE, policy_digest=now.policy_digest
    )
    raised = an_item(tier=Tier.ESCALATE, requirement=TWO).with_(floor=floor)
    assert first_of(raised, now).tier is Tier.APPROVE
    other = first_of(raised, evaluation(policy_digest="sha256:2"))
    assert (other.tier, other.floor) == (Tier.ESCALATE, None)
