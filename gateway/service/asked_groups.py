"""User groups that a policy may ask about calls of a tool, worked out once."""

from __future__ import annotations

from typing import Final

from twokey.gateway.approvals.record import Item
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.rules import Policy

MOST_REMEMBERED: Final = 1_000
"""Tools that are remembered; an agent may ask for tools of any name."""


_ByTool = dict[tuple[str, str], frozenset[str]]


class AskedGroups:
    """The user groups of a policy by agent and tool; of one policy at a time."""

    def __init__(self) -> None:
        self._known: tuple[Policy | None, _ByTool] = (None, {})

    @property
    def remembered(self) -> int:
        """Return how many tools are remembered."""
        return len(self._known[1])

    def of(self, policy: Policy, item: Item) -> frozenset[str]:
        """Return the user groups that may matter for an item, then or now.

        Those of its pinned requirement, and those that the policy names for its tool at
        any tier: people whom either asks may come first.
        """
        pinned = (group for role in item.requirement.roles for group in role.usergroups)
        return self._named(policy, item.ctx.agent, item.tool).union(pinned)

    def _named(self, policy: Policy, agent: str, tool: str) -> frozenset[str]:
        # By the object and not by its digest: it is the very policy that is asked.
        of_policy, by_tool = self._known
        if of_policy is not policy or len(by_tool) >= MOST_REMEMBERED:
            by_tool = {}
            # In one step: a thread with another policy must not add to these.
            self._known = policy, by_tool
        found = by_tool.get((agent, tool))
        if found is None:
            roles = EffectiveRules(policy, agent, tool).everybody()
            found = frozenset(group for role in roles for group in role.usergroups)
            by_tool[agent, tool] = found
        return found
