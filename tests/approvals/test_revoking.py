"""A vote counts at the claim while the policy still gives its person the role."""

from __future__ import annotations

import pytest

from tests.approvals.builders import (
    ANA,
    BEN,
    DAN,
    NOW_MS,
    an_approval,
    an_item,
)
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.approvals.requirement import Requirement, Role, Vote
from twokey.gateway.approvals.revoking import revoke
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier

DAY = Role(name="day", users=(ANA.user,), usergroups=("S0DAY",))


@pytest.mark.parametrize(
    ("by", "instead_of", "now", "counts"),
    [
        (ANA, (), DAY, True),
        (ANA, (), DAY.with_(users=()), False),
        (ANA, (), DAY.with_(users=(BEN.user,)), False),
        (ANA, (), DAY.with_(usergroups=()), True),
        # Ben is in the user group: whether he still is, the claim does not ask.
        (BEN, (), DAY, True),
        (BEN, (), DAY.with_(users=()), True),
        (BEN, (), DAY.with_(usergroups=()), False),
        (BEN, (), DAY.with_(name="night"), False),
        # Dan stood in for Ana.
        (DAN, (ANA,), DAY, True),
        (DAN, (ANA,), DAY.with_(users=()), False),
    ],
)
def test_a_vote_counts_while_the_policy_gives_its_role(
    by: Person, instead_of: tuple[Person, ...], now: Role, *, counts: bool
) -> None:
    item = an_item(requirement=Requirement(approvals=1, of=(DAY,)))
    vote = Vote(
        by=by,
        roles=("day",),
        action_hash=item.action_hash,
        at_ms=1,
        on_behalf_of=instead_of,
    )
    item = item.with_(state=ItemState.AUTHORIZED, votes=(vote,))
    policy_now = PolicyDecision(
        tier=Tier.APPROVE,
        requirement=Requirement(approvals=1, of=(now,)),
        policy_digest="sha256:1",
    )

    change = revoke(an_approval(item), item, policy_now, now_ms=NOW_MS)

    assert (change is None) is counts
