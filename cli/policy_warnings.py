"""Warn about requirements of a policy that nobody can meet or that nothing uses."""

from __future__ import annotations

from twokey.gateway.approvals.quorum import clauses
from twokey.gateway.approvals.requirement import Requirement
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.eligibility import reachable_requirements
from twokey.gateway.policy.requirement_checks import unused
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier


def too_few_people(policy: Policy) -> list[str]:
    """Return a sentence for every tool that fewer people can approve than have to."""
    # Tools that are listed come first. Each sentence once: the same tool may be listed
    # for several agents.
    found = [
        f"{_named(one.tool)} {lacks}"
        for one in sorted(reachable_requirements(policy), key=lambda one: not one.tool)
        if (lacks := _lacks(one.requirement, one.tier))
    ]
    return list(dict.fromkeys(found))


def uncalled(policy: Policy) -> list[str]:
    """Return a sentence for every 'escalate_to' of people who may not vote."""
    # One sentence a tier, since its people are written once, whatever the number of
    # tools. A dict for its order.
    found: dict[Tier, dict[str, None]] = {}
    for one in reachable_requirements(policy):
        rules = EffectiveRules(policy, one.agent, one.tool)
        name, _ = rules.escalation(one.tier, one.requirement)
        if rules.waiting(one.tier).escalate_to and not name:
            tool = repr(one.tool) if one.tool else "tools that are not listed"
            found.setdefault(one.tier, {})[tool] = None
    return [
        f"'tiers.{tier}.escalate_to' calls nobody for {', '.join(tools)}: none of "
        f"{policy.tiers.waiting(tier).escalate_to!r} is listed for the requirement; "
        "add them there, or name a channel."
        for tier, tools in found.items()
    ]


def unused_requirements(policy: Policy) -> list[str]:
    """Return a sentence for every requirement that nothing needs."""
    return [
        f"The requirement {name!r} is not used: no 'needs' names it."
        for name in unused(policy)
    ]


def _named(tool: str) -> str:
    return repr(tool) if tool else "A tool that is not listed"


def _lacks(requirement: Requirement, tier: Tier) -> str:
    """Say which people a requirement lacks; the sizes of user groups are unknown."""
    for names, count in clauses(requirement).items():
        roles = [role for role in requirement.roles if role.name in names]
        people = {user for role in roles for user in role.users}
        # How many are in a user group only Slack knows; `twokey doctor` asks it.
        if any(role.usergroups for role in roles) or len(people) >= count:
            continue
        if not people:
            return "needs an approval, and no reviewer is set."
        return (
            f"needs {count} people at {tier}, and {len(people)} can be asked, so at "
            "that tier it can only be rejected or expire."
        )
    return ""
