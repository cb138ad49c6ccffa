"""A store whose clock went back prevents no approval."""

from __future__ import annotations

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.protocol.records import Tier
from tests.approvals.builders import (
    ANA,
    NOW_MS,
    ONE,
    an_approval,
    an_item,
    click_on,
    reviewer,
)

MINUTE_MS = 60_000


def test_a_second_approval_counts_after_the_clock_went_back() -> None:
    approval = an_approval(an_item(tier=Tier.ESCALATE))
    policy = PolicyDecision(
        tier=Tier.ESCALATE, requirement=ONE, policy_digest="p", ask_again_ms=5_000
    )

    # A fail-over to a server whose clock is five minutes behind.
    for passed_ms in (0, 10_000, 20_000, 30_000):
        change = decide(
            approval,
            click_on(approval),
            Approve(),
            reviewer(ANA),
            now_ms=NOW_MS - 5 * MINUTE_MS + passed_ms,
            policy_now=policy,
        )
        assert isinstance(change, Change)
        approval = change.approval
        if not approval.items[0].is_pending:
            break

    assert not approval.items[0].is_pending, len(approval.items[0].too_soon)
