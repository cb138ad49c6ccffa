"""No decision, policy or passing of time lowers a call's requirement."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decision_context import first_of
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject
from keyturn.gateway.approvals.quorum import asks_more
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Floor, Requirement
from keyturn.gateway.protocol.records import ItemState, Person, Tier
from tests.approvals.builders import (
    ANA,
    BEN,
    CHLOE,
    DAN,
    HOUR_MS,
    NOW_MS,
    ONE,
    SENIOR,
    SUPPORT,
    TWO,
    an_approval,
    an_item,
    evaluation,
    say,
)
from tests.levels import examples

REQUIREMENTS = {
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
    approval: Approval = an_approval(an_item(tier=tier, requirement=REQUIREMENTS[tier]))
    now_ms = NOW_MS
    for person, decision, today, passed_ms in steps:
        now_ms += passed_ms
        before = approval.items[0]
        # Each tier is of another policy.
        now = evaluation(today, REQUIREMENTS[today], policy_digest=today.value)
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
