"""The requirements that calls can come to under a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.approvals.record import Demand
from gateway.approvals.tiers import Tier, join
from gateway.policy.rules import Policy
from gateway.policy.selection import Selection

_UNLISTED = ""
"""No agent and no tool has this name, so it stands for those the policy omits."""


@dataclass(frozen=True, slots=True)
class Reachable:
    """A requirement, and a call that can come to it.

    Attributes:
        agent: its name, "" for one that the policy does not list.
        tool: likewise.
        tier: at which people are asked.
        demand: who has to agree.
    """

    agent: str
    tool: str
    tier: Tier
    demand: Demand


def reachable_demands(policy: Policy) -> Iterator[Reachable]:
    """Yield who has to agree to what, for every tier that a call can be raised to."""
    for agent in (_UNLISTED, *policy.agents):
        own = policy.agents[agent].tools if agent else {}
        for tool in dict.fromkeys((_UNLISTED, *policy.tools, *own)):
            selection = Selection(policy, agent, tool)
            for tier in sorted(_tiers(selection), key=lambda one: one.rank):
                yield Reachable(agent, tool, tier, selection.demand(tier))


def _tiers(selection: Selection) -> set[Tier]:
    floor, _ = selection.tier()
    tiers = {floor, *(join(floor, rule.to) for rule in selection.raising())}
    if any(selection.triage(tier) for tier in tiers):
        tiers.add(join(floor, Tier.ESCALATE))
    return tiers & {Tier.APPROVE, Tier.ESCALATE}
