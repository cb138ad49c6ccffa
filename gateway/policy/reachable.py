"""Find the requirements that calls can get under a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twokey.gateway.approvals.people import Requirement
from twokey.gateway.policy.rules import Policy
from twokey.gateway.policy.selection import Selection
from twokey.gateway.protocol.tiers import Tier, join

_UNLISTED = ""
"""No agent and no tool has this name, so it stands for those the policy omits."""


@dataclass(frozen=True, slots=True)
class Reachable:
    """A requirement, and a call that can come to it.

    Attributes:
        agent: its name, "" for one that the policy does not list.
        tool: likewise.
        tier: at which people are asked.
        requirement: who has to agree.
    """

    agent: str
    tool: str
    tier: Tier
    requirement: Requirement


def reachable_requirements(policy: Policy) -> Iterator[Reachable]:
    """Yield who has to agree to what, for all that a rule can raise a call to."""
    for agent in (_UNLISTED, *policy.agents):
        own = policy.agents[agent].tools if agent else {}
        for tool in dict.fromkeys((_UNLISTED, *policy.tools, *own)):
            selection = Selection(policy, agent, tool)
            for tier, needs in _asked(selection):
                requirement = selection.requirement(tier, needs)
                yield Reachable(agent, tool, tier, requirement)


def _asked(selection: Selection) -> Iterator[tuple[Tier, tuple[str, ...]]]:
    """Yield the tiers at which people are asked, and what each rule asks beside."""
    floor, _ = selection.tier()
    rules = selection.raising()
    found: dict[tuple[Tier, tuple[str, ...]], None] = {(floor, ()): None}
    for rule in rules:
        needs = (rule.needs,) if rule.needs else ()
        found[join(floor, rule.tier), needs] = None
    if any(selection.triage(tier) for tier, _ in found):
        found[join(floor, Tier.ESCALATE), ()] = None
    return (one for one in found if one[0] in {Tier.APPROVE, Tier.ESCALATE})
