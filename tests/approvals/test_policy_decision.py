"""A summary is the policy's description, else the agent's own, marked as such."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.policy_decision import PolicyDecisionFields
from keyturn.gateway.protocol.records import Tier, Verb
from tests.approvals.builders import ONE


@pytest.mark.parametrize(
    ("description", "agent_description", "summary"),
    [
        ("Refund of 12.00 EUR", "a small gift", "Refund of 12.00 EUR"),
        ("", "a small gift", "The agent says: a small gift"),
        ("Refund of 12.00 EUR", "", "Refund of 12.00 EUR"),
        ("", "", ""),
    ],
)
def test_the_agents_own_words_never_pass_for_the_policys(
    description: str, agent_description: str, summary: str
) -> None:
    call = PolicyDecisionFields(
        tier=Tier.APPROVE,
        requirement=ONE,
        allow=tuple(Verb),
        description=description,
        agent_description=agent_description,
    )

    assert call.summary == summary
