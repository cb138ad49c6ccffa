"""Find the people whom a policy can ask about a call or let freeze something.

Stopping asks nobody else and stops at once, so it needs one person, of any role that
the policy asks at any tier. The same people let it run again, unless the policy names
others for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from twokey.gateway.approvals.people import Requirement, Role
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
    for agent, tool in _places(policy):
        selection = Selection(policy, agent, tool)
        for tier, needs in _asked(selection):
            requirement = selection.requirement(tier, needs)
            yield Reachable(agent, tool, tier, requirement)


def stoppers(policy: Policy, *, agent: str = "", tool: str = "") -> Requirement:
    """Return the people of whom one may stop this.

    Args:
        policy: the policy in force now.
        agent: name of the agent; empty for all of them.
        tool: name of the tool; empty for all of them.
    """
    places = _places(policy, agent, tool)
    found = (Selection(policy, *place).everybody() for place in places)
    return Requirement(approvals=1, of=merged(chain.from_iterable(found)))


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


def _places(
    policy: Policy, agent: str = "", tool: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each agent with each tool, of all that a policy tells apart or of these."""
    for name in [agent] if agent else (_UNLISTED, *policy.agents):
        rule = policy.agents.get(name)
        listed = (_UNLISTED, *policy.tools, *(rule.tools if rule else ()))
        for each in [tool] if tool else dict.fromkeys(listed):
            yield name, each


def _asked(selection: Selection) -> Iterator[tuple[Tier, tuple[str, ...]]]:
    """Yield the tiers at which people are asked, and what each rule asks beside."""
    floor, _ = selection.tier()
    rules = selection.raising()
    found: dict[tuple[Tier, tuple[str, ...]], None] = {(floor, ()): None}
    for rule in rules:
        needs = (rule.needs,) if rule.needs else ()
        found[join(floor, rule.tier), needs] = None
    # Triage may bring a call as far as escalate without any rule of the file.
    if any(selection.triage(tier) for tier, _ in found):
        found[join(floor, Tier.ESCALATE), ()] = None
    return (one for one in found if one[0] in {Tier.APPROVE, Tier.ESCALATE})


def merged(roles: Iterable[Role]) -> tuple[Role, ...]:
    """Return each name once; people listed by id share a name and are all kept."""
    named: dict[str, Role] = {}
    for role in roles:
        # By name: the same role may come from several places with a different list
        # each.
        known = named.get(role.name, Role(name=role.name))
        named[role.name] = known.with_(
            users=tuple(dict.fromkeys((*known.users, *role.users))),
            usergroups=tuple(dict.fromkeys((*known.usergroups, *role.usergroups))),
        )
    return tuple(named.values())
