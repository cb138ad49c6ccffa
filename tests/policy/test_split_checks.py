"""A policy of a tenant that is split by agent spans no agents, feature by feature."""

from __future__ import annotations

import pytest

from twokey.gateway.policy.load import BadPolicy, load_policy

HEAD = """version: 1
defaults: {channel: C0APPROVALS, reviewers: support}
roles: {support: {users: [U0ANA, U0BEN]}}
"""
TOTAL = """windows: {refunds: {tools: refund, count: true, within: 24h%s}}
tools: {refund: {tier: approve}}
"""
SIMILAR = "allow_similar: {within: 4h, uses: 3}"
RULE = """tools:
  refund: {tier: approve, raise: [{to: escalate, because: often, when: %s}]}
"""
SPANNING = {
    "a total of the tenant": (
        TOTAL % "",
        "'windows.refunds' is counted for the whole tenant over all agents",
    ),
    "a total by a resource": (
        TOTAL % ", by: args.customer",
        "'windows.refunds' is counted by 'args.customer' over all agents",
    ),
    "a total by the person who asks": (
        TOTAL % ", by: requester",
        "'windows.refunds' is counted by 'requester' over all agents",
    ),
    "a total by tool": (
        TOTAL % ", by: call.tool",
        "'windows.refunds' is counted by 'call.tool' over all agents",
    ),
    "standing approvals": (
        f"tools: {{refund: {{tier: approve, {SIMILAR}}}}}",
        "'tools.refund.allow_similar' allows standing approvals",
    ),
    "standing approvals of one agent": (
        f"agents: {{billing: {{tools: {{refund: {{tier: approve, {SIMILAR}}}}}}}}}",
        "'agents.billing.tools.refund.allow_similar' allows standing approvals",
    ),
    "precedents": (
        "tools: {refund: {tier: approve, same_by: [args.order]}}",
        "'tools.refund.same_by' says which calls of all agents are the same",
    ),
    "a rule that reads precedents": (
        RULE % "recent.same_done_24h > 0",
        "'tools.refund.raise[0].when' reads 'recent.same_done_24h'",
    ),
    "a rule that reads rejected precedents": (
        RULE % "recent.same_rejected_24h > 0",
        "'tools.refund.raise[0].when' reads 'recent.same_rejected_24h'",
    ),
}
ALLOWED = {
    "a total of each agent": TOTAL % ", by: call.agent",
    "two people of two roles": "tiers: {escalate: {approvals: 2, of: [support]}}\n",
    "what an agent did lately": RULE % "recent.requests_10m > 5",
    "cards of several requests": (
        "tools: {refund: {tier: approve, batch: {within: 1m}}}"
    ),
    "spot checks": "spot_checks: {share: 5, of: support}\n",
}


@pytest.mark.parametrize("feature", SPANNING)
def test_what_spans_agents_is_refused_in_one_sentence(feature: str) -> None:
    text, problem = SPANNING[feature]
    load_policy(HEAD + text, "policy.yml")

    with pytest.raises(BadPolicy) as error:
        load_policy(HEAD + text, "policy.yml", is_split=True)

    [found] = error.value.problems
    assert found.text.startswith(problem)
    assert "'split_by_agent' keeps each agent's runs in one shard" in found.text
    # It ends with what to do.
    assert "; write " in found.text or "; remove " in found.text
    assert found.text.endswith(
        "or set 'split_by_agent: false' for a tenant with another name."
    )
    assert found.location in {"policy.yml:4", "policy.yml:5"}


@pytest.mark.parametrize("feature", ALLOWED)
def test_what_is_of_one_agent_or_one_call_is_taken(feature: str) -> None:
    load_policy(HEAD + ALLOWED[feature], "policy.yml", is_split=True)
