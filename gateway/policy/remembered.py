"""Remember what a policy says of a tool: calls ask for the same again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twokey.gateway.policy.rules import Policy

T = TypeVar("T")

MOST_TOOLS = 1024
"""Of how many tools it is remembered: agents choose their names."""
MOST_POLICIES = 16
"""Each tenant of a process may have one."""


class Remembered(Generic[T]):
    """What policies say of tools, found once for each policy, agent and tool.

    Args:
        find: returns it; by the policy and the two names alone.
    """

    def __init__(self, find: Callable[[Policy, str, str], T]) -> None:
        self._find = find
        # With the policy itself: while it is kept, no other one gets its identity.
        self._known: dict[int, tuple[Policy, dict[tuple[str, str], T]]] = {}

    def of(self, policy: Policy, agent: str, tool: str) -> T:
        """Return what a policy says of a tool of an agent."""
        # By identity: to compare policies takes longer than to ask one.
        policy_id = id(policy)
        found = self._known.get(policy_id)
        known: dict[tuple[str, str], T] = found[1] if found else {}
        if found is None or len(known) >= MOST_TOOLS:
            known = {}
            if len(self._known) >= MOST_POLICIES:
                # In one step: other threads look at the same time.
                self._known = {}
            self._known[policy_id] = policy, known
        if (agent, tool) not in known:
            known[agent, tool] = self._find(policy, agent, tool)
        return known[agent, tool]
