"""Evaluate a policy for a question: who may answer, where it is asked and how long.

A question is never gated: no tier, rule, window or triage of a policy is about it.
"""

from __future__ import annotations

from twokey.gateway.approvals.requirement import Requirement
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.evaluate import Evaluation
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb

_OTHERS_AT = 50
"""When others are asked, in percent of the time, unless the policy says."""


def evaluate_question(
    policy: Policy, *, agent: str, tool: str, has_requester: bool
) -> Evaluation:
    """Return how a question is asked: by the entry of its tool, like an approval.

    The person who asked the agent may always answer; so may one person of the roles
    that could approve a call. They are called later where somebody asked the agent.
    """
    rules, tier = EffectiveRules(policy, agent, tool), Tier.APPROVE
    waiting = rules.waiting(tier)
    requirement = rules.requirement(tier)
    called_at = waiting.escalate_at
    called, roles = rules.escalation(tier, requirement)
    if has_requester:
        called_at, roles = called_at or _OTHERS_AT, requirement.roles
    return Evaluation(
        tier=tier,
        # One person answers, however many a call would need.
        requirement=Requirement(approvals=1, of=requirement.roles),
        policy_digest=policy.digest,
        allow=(Verb.RESPOND, Verb.REJECT),
        is_question=True,
        ttl_ms=rules.ttl_ms(tier),
        channel=rules.channel(tier),
        remind_at_ms=rules.share_ms(tier, waiting.remind_at),
        escalate_at_ms=rules.share_ms(tier, called_at if roles or called else None),
        escalate_to=called,
        escalate_roles=roles,
    )
