"""A vote counts at the claim while the policy still gives its person the role."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role, Vote
from keyturn.gateway.approvals.revoking import revoke
from keyturn.gateway.approvals.similar import Cover
from keyturn.gateway.protocol.records import ItemState, Person, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    DAN,
    NOW_MS,
    an_approval,
    an_item,
)

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
        # Dan was Ana's delegate.
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


def test_a_notification_that_a_standing_approval_opened_ends_with_it() -> None:
    cover = Cover(approval="ap_default_1", given_by=(ANA,), uses_left=1)
    item = an_item().with_(state=ItemState.AUTHORIZED, cover=cover)
    policy_now = PolicyDecision(
        tier=Tier.NOTIFY, requirement=item.requirement, policy_digest="sha256:1"
    )
    approval = an_approval(item)

    def ended(standing: Approval | None) -> bool:
        found = revoke(approval, item, policy_now, now_ms=NOW_MS, standing=standing)
        return found is not None

    assert not ended(an_approval(item)), "the policy needs nobody for it any more"
    assert ended(None)
