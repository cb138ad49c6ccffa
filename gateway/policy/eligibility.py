"""List the requirements that calls can have by policy, and who may freeze or unfreeze.

Stopping asks nobody else and stops at once, so it needs one person, of any role that
the policy asks at any tier. The same people let it run again, unless the policy names
others for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.rules import Policy, RaiseRule
from keyturn.gateway.protocol.tiers import Tier, join

_UNLISTED = ""
"""No agent and no tool has this name, so it stands for those the policy omits."""


@dataclass(frozen=True, slots=True)
class ReachableRequirement:
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


def reachable_requirements(policy: Policy) -> Iterator[ReachableRequirement]:
    """Yield the requirements that calls can have; who meets these meets any call's.

    A call asks for one of these, or for less at the same tier. Left out is what only a
    run of the agent asks for, and what the agent sends for a tool without rules: no
    file says whether it ever does, and every tool of tier `auto` would be reported to
    need people.
    """
    for agent, tool in _places(policy):
        rules = EffectiveRules(policy, agent, tool)
        asked = (
            ReachableRequirement(agent, tool, tier, rules.requirement(tier, needs))
            for tier, needs in _asked(policy, tool, rules)
        )
        found: list[ReachableRequirement] = []
        for one in asked:
            if one not in found:
                found.append(one)
        yield from found


def freeze_requirement(
    policy: Policy, *, agent: str = "", tool: str = ""
) -> Requirement:
    """Return the people of whom one may stop this.

    Args:
        policy: the policy in force now.
        agent: name of the agent; empty for all of them.
        tool: name of the tool; empty for all of them.
    """
    places = _places(policy, agent, tool)
    found = (EffectiveRules(policy, *place).everybody() for place in places)
    return Requirement(approvals=1, of=merged(chain.from_iterable(found)))


def unfreeze_requirement(
    policy: Policy, *, agent: str = "", tool: str = ""
) -> Requirement:
    """Return the people who may end a freeze of this; see `freeze_requirement`."""
    named = policy.protect.unfreeze
    if named is None:
        return freeze_requirement(policy, agent=agent, tool=tool)
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


def _asked(
    policy: Policy, tool: str, rules: EffectiveRules
) -> Iterator[tuple[Tier, tuple[str, ...]]]:
    """Yield the tiers at which people are asked, and what rules ask for beside."""
    floor, _ = rules.tier()
    raised = [(join(floor, rule.tier), rule) for rule in rules.raising()]
    found: list[tuple[Tier, tuple[str, ...]]] = [(floor, ())]
    found += [(tier, _needs([rule])) for tier, rule in raised]
    if policy.protect.ask_about_invalid_calls:
        # A call that does not fit its tool is never approved by the policy alone.
        found.append((join(floor, Tier.APPROVE), ()))
    triaged = [tier for tier, _ in found if rules.triage(tier)]
    found += [(join(tier, Tier.APPROVE), ()) for tier in triaged]
    # Rules may hold together. What they need adds up, so all of them cover any choice.
    if any(tier is Tier.APPROVE for tier, _ in found):
        together = [rule for tier, rule in raised if tier.rank <= Tier.APPROVE.rank]
        found.append((Tier.APPROVE, _needs(together)))
    # What cannot be checked is raised to escalate, and triage may raise as far. Rules
    # that hold beside that still need their people.
    is_doubtful = (
        bool(raised)
        or rules.first.args_schema is not None
        or bool(triaged)
        or any(
            rule.covers(tool) and (rule.by or rule.sum)
            for rule in policy.windows.values()
        )
    )
    if is_doubtful:
        found.append((join(floor, Tier.ESCALATE), _needs(rules.raising())))
    return (one for one in found if one[0].needs_people)


def _needs(rules: Iterable[RaiseRule]) -> tuple[str, ...]:
    return tuple(rule.needs for rule in rules if rule.needs)


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
