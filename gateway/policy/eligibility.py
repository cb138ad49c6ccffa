"""List the requirements that calls can have by policy, and validate them.

A requirement is invalid with an unknown name, an unreachable quorum or conflicting
keys. One person can freeze, with immediate effect: anyone with a role that the policy
asks at any tier. The same people can unfreeze, unless the policy names others for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from keyturn.gateway.approvals.quorum import clauses
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.policy.effective_rules import EffectiveRules, required
from keyturn.gateway.policy.fields import is_channel, is_slack_id
from keyturn.gateway.policy.rules import Policy, RaiseRule, RequirementRule
from keyturn.gateway.protocol.records import Tier, join
from keyturn.gateway.validation_errors import Path, ProblemAt, dotted, near

_UNLISTED = ""
"""Placeholder for agents and tools that the policy does not list."""


@dataclass(frozen=True, slots=True)
class ReachableRequirement:
    """A requirement, and a call that can have it.

    Attributes:
        agent: name of the agent; "" for an unlisted one.
        tool: name of the tool; "" for an unlisted one.
        tier: a tier that needs people.
        requirement: the people who have to agree.
    """

    agent: str
    tool: str
    tier: Tier
    requirement: Requirement


def reachable_requirements(policy: Policy) -> Iterator[ReachableRequirement]:
    """Yield the requirements that calls can have.

    People who can meet all of these can meet the requirement of any call: a call has
    one of these, or a weaker one at the same tier. Two cases are omitted, because the
    file does not show whether they occur and every tool of tier `auto` would be
    reported: a tier requested by a run of an agent, and a schema declared by an agent
    for a tool without rules.
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
    """Return the requirement of a freeze: one person of these roles.

    Args:
        policy: the current policy.
        agent: name of the agent; empty for all agents.
        tool: name of the tool; empty for all tools.
    """
    places = _places(policy, agent, tool)
    found = (EffectiveRules(policy, *place).everybody() for place in places)
    return Requirement(approvals=1, of=merged(chain.from_iterable(found)))


def unfreeze_requirement(
    policy: Policy, *, agent: str = "", tool: str = ""
) -> Requirement:
    """Return the requirement of ending a freeze; see `freeze_requirement`."""
    named = policy.protect.unfreeze
    if named is None:
        return freeze_requirement(policy, agent=agent, tool=tool)
    return Requirement(approvals=1, of=policy.roles_named(named))


def _places(
    policy: Policy, agent: str = "", tool: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield (agent, tool) for all that the policy distinguishes, or for these."""
    for name in [agent] if agent else (_UNLISTED, *policy.agents):
        rule = policy.agents.get(name)
        listed = (_UNLISTED, *policy.tools, *(rule.tools if rule else ()))
        for each in [tool] if tool else dict.fromkeys(listed):
            yield name, each


def _asked(
    policy: Policy, tool: str, rules: EffectiveRules
) -> Iterator[tuple[Tier, tuple[tuple[str, ...], ...]]]:
    """Yield the tiers that need people, with the requirements that rules add."""
    floor, _ = rules.tier()
    raised = [(join(floor, rule.tier), rule) for rule in rules.raising()]
    found: list[tuple[Tier, tuple[tuple[str, ...], ...]]] = [(floor, ())]
    found += [(tier, _needs([rule])) for tier, rule in raised]
    if policy.protect.ask_about_invalid_calls:
        # The policy alone never approves a call that does not fit its tool.
        found.append((join(floor, Tier.APPROVE), ()))
    triaged = [tier for tier, _ in found if rules.triage(tier)]
    found += [(join(tier, Tier.APPROVE), ()) for tier in triaged]
    # Several rules may be true at once. Their requirements add up to one that covers
    # any choice of them.
    if any(tier is Tier.APPROVE for tier, _ in found):
        together = [rule for tier, rule in raised if tier.rank <= Tier.APPROVE.rank]
        found.append((Tier.APPROVE, _needs(together)))
    # A call that cannot be checked is raised to escalate; triage may raise that far,
    # too. Rules that are also true still need their people.
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


def _needs(rules: Iterable[RaiseRule]) -> tuple[tuple[str, ...], ...]:
    return tuple(rule.needs for rule in rules if rule.needs)


def merged(roles: Iterable[Role]) -> tuple[Role, ...]:
    """Return each role once; people listed by id share a name and are all kept."""
    named: dict[str, Role] = {}
    for role in roles:
        # By name: several places may list the same role with different people.
        known = named.get(role.name, Role(name=role.name))
        named[role.name] = known.with_(
            users=tuple(dict.fromkeys((*known.users, *role.users))),
            usergroups=tuple(dict.fromkeys((*known.usergroups, *role.usergroups))),
        )
    return tuple(named.values())


def requirement_problems(policy: Policy) -> Iterator[ProblemAt]:
    """Yield the mistakes in requirements, and in the keys that name people or one."""
    for path, names in _needed(policy):
        yield from _unknown(policy, path, names)
    for path, names in _people(policy):
        yield from _unknown_roles(policy, path, names)
    for name, rule in policy.requirements.items():
        path = ("requirements", name)
        if name in policy.roles:
            text = f"{dotted(path)!r} has the name of a role, and 'needs' may name "
            yield path, f"{text}either; rename one of them."
        # An unknown role is reported elsewhere, and would have no holders here.
        if all(role in policy.roles for _, roles in _of(rule) for role in roles):
            for some, count in clauses(required(policy, (name,))).items():
                yield from _too_few(policy, path, tuple(sorted(some)), count)
    escalate = policy.tiers.escalate
    if escalate.needs and policy.requirement_in(escalate.needs) is None:
        # The people called later may vote from the start, so they count as well.
        called = escalate.escalate_to
        others = () if called is None or is_channel(called) else (called,)
        path = ("tiers", "escalate", "needs")
        yield from _too_few(policy, path, (*escalate.needs, *others), 2)


def _unknown(policy: Policy, path: Path, names: tuple[str, ...]) -> Iterator[ProblemAt]:
    """Yield the names in ``needs`` that are neither people nor a requirement."""
    if policy.requirement_in(names) is not None:
        return
    for name in names:
        if name in policy.requirements:
            text = f"{dotted(path)!r} lists the requirement {name!r} with others; "
            yield path, f"{text}write it alone, or list roles and Slack ids."
        elif not (is_slack_id(name) or name in policy.roles):
            text = f"{dotted(path)!r} names {name!r}, which is neither in 'roles' nor "
            known = {*policy.roles, *policy.requirements}
            yield path, f"{text}in 'requirements'; {near(name, known)}"


def _unknown_roles(
    policy: Policy, path: Path, names: tuple[str, ...]
) -> Iterator[ProblemAt]:
    for name in names:
        if not (is_slack_id(name) or name in policy.roles):
            text = f"{dotted(path)!r} names the role {name!r}, which is not in "
            yield path, f"{text}'roles'; {near(name, policy.roles)}"


def unused(policy: Policy) -> list[str]:
    """Return the names of unused requirements."""
    used = {name for _, names in _needed(policy) for name in names}
    return [name for name in policy.requirements if name not in used]


def _too_few(
    policy: Policy, path: Path, names: tuple[str, ...], needed: int
) -> Iterator[ProblemAt]:
    """Yield a problem if fewer people are listed than have to agree."""
    roles = policy.roles_named(names)
    people = {user for role in roles for user in role.users}
    # Only Slack has the size of a user group; `keyturn doctor` checks it.
    is_bounded = all(role.users and not role.usergroups for role in roles)
    if is_bounded and len(people) < needed:
        of = f" of {' or '.join(names)}" if path[0] == "requirements" else ""
        text = f"{dotted(path)!r} needs {needed} people{of}, and {len(people)} can be "
        yield path, f"{text}asked; add users or a user group."


def _of(rule: RequirementRule) -> Iterator[tuple[Path, tuple[str, ...]]]:
    if rule.of is not None:
        yield ("of",), rule.of
    for index, part in enumerate(rule.all_ or ()):
        yield ("all", index, "of"), part.of


def _needed(policy: Policy) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield every ``needs`` of the file with its place."""
    yield ("defaults", "needs"), policy.defaults.needs
    yield ("tiers", "escalate", "needs"), policy.tiers.escalate.needs or ()
    for agent, agent_rule in policy.agents.items():
        yield ("agents", agent, "needs"), agent_rule.needs or ()
    for base, rule in policy.tool_rules():
        yield (*base, "needs"), rule.needs or ()
        for index, raising in enumerate(rule.raise_):
            yield (*base, "raise", index, "needs"), raising.needs or ()


def _people(policy: Policy) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the other keys that name people, with their places."""
    yield ("protect", "unfreeze"), policy.protect.unfreeze or ()
    yield ("spot_checks", "of"), policy.spot_checks.of if policy.spot_checks else ()
    for name, rule in policy.requirements.items():
        for path, roles in _of(rule):
            yield ("requirements", name, *path), roles
    for tier in (Tier.APPROVE, Tier.ESCALATE):
        called = policy.tiers.waiting(tier).escalate_to
        if called is not None and not is_channel(called):
            yield ("tiers", tier.value, "escalate_to"), (called,)
