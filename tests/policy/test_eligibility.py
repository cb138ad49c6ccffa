"""Every requirement that a call can come to is found, and no other."""

from __future__ import annotations

from twokey.gateway.policy.eligibility import reachable_requirements
from twokey.gateway.policy.load import load_policy

HEAD = """\
version: 1
defaults: {reviewers: support}
roles: {support: {users: [U0ANA, U0BEN]}, senior: {users: [U0LEAD, U0HEAD]}}
tiers: {escalate: {of: senior}}
requirements: {one_senior: {of: senior}}
"""
ANY = ("", "", "approve", ["support"])

Row = tuple[str, str, str, list[str]]


def reachable(rest: str) -> list[Row]:
    """Return agent, tool, tier and roles of each requirement but the default one."""
    found = [
        (
            one.agent,
            one.tool,
            one.tier.value,
            [role.name for role in one.requirement.roles],
        )
        for one in reachable_requirements(load_policy(HEAD + rest, "p.yml"))
    ]
    assert ANY in found
    return [one for one in found if one != ANY]


def test_a_tool_that_asks_nobody_is_left_out() -> None:
    assert reachable("tools: {look_up: {tier: auto}, wipe: {tier: deny}}") == []


def test_what_a_rule_raises_to_and_whom_it_needs_is_found() -> None:
    found = reachable(
        "tools: {pay: {tier: auto, raise: ["
        "{when: args.n > 5, to: escalate, because: much}, "
        "{when: args.n > 1, needs: one_senior, because: some}]}}"
    )

    assert found == [
        ("", "pay", "escalate", ["senior"]),
        ("", "pay", "approve", ["support", "senior"]),
    ]


def test_what_triage_may_raise_to_is_found() -> None:
    triage = "triage: {tiers: [approve]}"

    assert reachable("tools: {mail: {tier: auto}}") == []
    assert reachable(f"tools: {{mail: {{tier: approve, {triage}}}}}") == [
        ("", "mail", "approve", ["support"]),
        ("", "mail", "escalate", ["senior"]),
    ]


def test_what_holds_for_one_agent_is_found_under_its_name() -> None:
    found = reachable("agents: {night: {tools: {mail: {tier: escalate}}}}")

    assert ("night", "mail", "escalate", ["senior"]) in found
    assert ("night", "", "approve", ["support"]) in found
