"""Who must agree, and whether they have."""

from __future__ import annotations

import pytest

from gateway.approvals.quorum import roles_of, tally
from gateway.approvals.record import Demand, Person, Vote
from tests.approvals.builders import ANA, BEN, CHLOE, SENIOR, SUPPORT, TWO, reviewer

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
        ([vote(ANA, "support"), vote(CHLOE, "senior", action_hash=OTHER)], 1, False),
        ([vote(ANA), vote(CHLOE, "senior")], 1, False),
    ],
)
def test_distinct_people_count_for_the_identical_action_only(
    votes: list[Vote], have: int, *, is_met: bool
) -> None:
    count = tally(TWO, votes, HASH)

    assert (count.have, count.is_met) == (have, is_met)


def test_a_person_in_two_roles_is_one_vote_that_holds_both() -> None:
    demand = Demand(approvals=1, of=(SUPPORT, SENIOR), at_least={"senior": 1})

    count = tally(demand, [vote(CHLOE, "support", "senior")], HASH)

    assert count.is_met


def test_the_lacking_role_is_named() -> None:
    assert tally(TWO, [vote(ANA, "support")], HASH).lacking == {"senior": 1}


def test_roles_come_from_ids_and_groups_and_never_from_names() -> None:
    impostor = reviewer(Person(team="T0", user="U0EVE", name="U0CHLOE"))

    assert roles_of(impostor, [SUPPORT, SENIOR]) == ()
    assert roles_of(reviewer(CHLOE), [SUPPORT, SENIOR]) == ("senior",)
