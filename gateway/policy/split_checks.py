"""Refuse what spans agents in the policy of a tenant that is split by agent.

Each agent's runs are in one shard then. What a decision compares and writes in one step
has to be there, so nothing may be counted, looked up or used up over several agents.
"""

from __future__ import annotations

from collections.abc import Iterator

from twokey.gateway.policy.expressions import compiled
from twokey.gateway.policy.name_check import SAME
from twokey.gateway.policy.rules import Policy
from twokey.gateway.validation_errors import ProblemAt, dotted

PER_AGENT = "call.agent"
"""What a window is counted by where it does not span agents."""

_SPLIT = "'split_by_agent' keeps each agent's runs in one shard"
_OR = "or set 'split_by_agent: false' for a tenant with another name"


def split_problems(policy: Policy) -> Iterator[ProblemAt]:
    """Yield what a tenant that is split by agent cannot have, with its next step."""
    for name, window in policy.windows.items():
        if window.by != PER_AGENT:
            path: tuple[str | int, ...] = ("windows", name)
            counted = f"by {window.by!r}" if window.by else "for the whole tenant"
            text = f"{dotted(path)!r} is counted {counted} over all agents, and "
            text += f"{_SPLIT}; write 'by: {PER_AGENT}' for a total of each agent, "
            yield path, f"{text}{_OR}."
    for base, rule in policy.tool_rules():
        if rule.allow_similar is not None:
            path = (*base, "allow_similar")
            text = f"{dotted(path)!r} allows standing approvals, which are looked up "
            text += (
                f"and used up in one place for the tenant, and {_SPLIT}; remove it, "
            )
            yield path, f"{text}{_OR}."
        if rule.same_by:
            path = (*base, "same_by")
            text = f"{dotted(path)!r} says which calls of all agents are the same, and "
            yield path, f"{text}{_SPLIT}; remove it, {_OR}."
        for number, one in enumerate(rule.raise_):
            members = compiled(one.when).members
            read = [name for name in SAME if ("recent", name) in members]
            if read:
                path = (*base, "raise", number, "when")
                text = f"{dotted(path)!r} reads 'recent.{read[0]}', which counts the "
                text += f"same calls of all agents, and {_SPLIT}; remove that, "
                yield path, f"{text}{_OR}."
