"""Say who may stop an agent, a tool or everything: whoever may review some of it.

Stopping asks nobody else and stops at once, so it needs one person, of any role that
the policy asks at any tier. The same people let it run again, unless the policy names
others for that.
"""

from __future__ import annotations

from collections.abc import Iterable

from twokey.gateway.approvals.people import Requirement, Role
from twokey.gateway.policy.rules import Policy
from twokey.gateway.policy.selection import Selection

_UNLISTED = ""
"""No agent and no tool has this name, so it stands for those the policy omits."""


def stoppers(policy: Policy, *, agent: str = "", tool: str = "") -> Requirement:
    """Return the people of whom one may stop this.

    Args:
        policy: the policy in force now.
        agent: name of the agent; empty for all of them.
        tool: name of the tool; empty for all of them.
    """
    agents = [agent] if agent else [_UNLISTED, *policy.agents]
    found: list[Role] = []
    for name in agents:
        for each in [tool] if tool else _tools(policy, name):
            found += Selection(policy, name, each).everybody()
    return Requirement(approvals=1, of=_merged(found))


def lifters(policy: Policy, *, agent: str = "", tool: str = "") -> Requirement:
    """Return the people of whom one may let run again what was stopped.

    Args:
        policy: the policy in force now.
        agent: name of the agent; empty for all of them.
        tool: name of the tool; empty for all of them.
    """
    named = policy.protect.unfreeze
    if named is None:
        return stoppers(policy, agent=agent, tool=tool)
    return Requirement(approvals=1, of=policy.roles_named(named))


def _tools(policy: Policy, agent: str) -> list[str]:
    rule = policy.agents.get(agent)
    return [_UNLISTED, *policy.tools, *(rule.tools if rule else ())]


def _merged(roles: Iterable[Role]) -> tuple[Role, ...]:
    """Return each name once; people listed by id share a name and are all kept."""
    named: dict[str, Role] = {}
    for role in roles:
        known = named.get(role.name, Role(name=role.name))
        named[role.name] = known.with_(
            users=tuple(dict.fromkeys((*known.users, *role.users))),
            usergroups=tuple(dict.fromkeys((*known.usergroups, *role.usergroups))),
        )
    return tuple(named.values())
