"""Validate requirements: unknown names, unreachable quorums, conflicting keys."""

from __future__ import annotations

from collections.abc import Iterator

from keyturn.gateway.approvals.quorum import clauses
from keyturn.gateway.policy.effective_rules import required
from keyturn.gateway.policy.rules import Policy, RequirementRule, ToolRule
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.validation_errors import Path, ProblemAt, dotted, near


def requirement_problems(policy: Policy) -> Iterator[ProblemAt]:
    """Yield the mistakes in requirements, and in the keys that name one."""
    for path, name in _named(policy):
        if name not in policy.requirements:
            text = f"{dotted(path)!r} names the requirement {name!r}, which is not in "
            text += f"'requirements'; {near(name, policy.requirements)}"
            yield path, text
    for name, rule in policy.requirements.items():
        path = ("requirements", name)
        yield from _at_least(rule, path)
        # An unknown role is reported elsewhere, and would have no holders here.
        if all(role in policy.roles for _, roles in _of(rule) for role in roles):
            for names, count in clauses(required(policy, name)).items():
                people = tuple(sorted(names))
                yield from too_few(policy, path, people, count)
    yield from _conflicts(policy)


def requirement_roles(policy: Policy) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the roles that requirements name, with their places."""
    for name, rule in policy.requirements.items():
        for path, roles in _of(rule):
            yield ("requirements", name, *path), roles


def unused(policy: Policy) -> list[str]:
    """Return the names of unused requirements."""
    used = {name for _, name in _named(policy)}
    return [name for name in policy.requirements if name not in used]


def too_few(
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


def _at_least(rule: RequirementRule, base: Path) -> Iterator[ProblemAt]:
    most = rule.approvals or 1
    for role, count in rule.at_least.items():
        path = (*base, "at_least", role)
        if role not in (rule.of or ()):
            text = f"{role!r} is not in {dotted((*base, 'of'))!r}, so it could never "
            yield path, f"{text}vote; add it there."
        if count > most:
            text = f"{dotted(path)!r} is {count}; use 1 to {most}, the number of "
            yield path, f"{text}approvals."


def _named(policy: Policy) -> Iterator[tuple[Path, str]]:
    """Yield every key that names a requirement."""
    for tier in (Tier.APPROVE, Tier.ESCALATE):
        needs = policy.tiers.waiting(tier).needs
        if needs is not None:
            yield ("tiers", tier.value, "needs"), needs
    for base, rule in policy.tool_rules():
        if rule.needs is not None:
            yield (*base, "needs"), rule.needs
        for index, raising in enumerate(rule.raise_):
            if raising.needs is not None:
                yield (*base, "raise", index, "needs"), raising.needs


def _conflicts(policy: Policy) -> Iterator[ProblemAt]:
    """Yield tools for which both 'needs' and 'reviewers' are set."""
    for base, rule in policy.tool_rules():
        listed = policy.tools.get(str(base[-1]), ToolRule())
        both = (rule, listed)
        if rule.reviewers is None and rule.needs is None:
            continue
        is_listed = any(one.reviewers is not None for one in both)
        if is_listed and any(one.needs for one in both):
            path = (*base, "needs" if rule.needs else "reviewers")
            text = f"{dotted(path)!r}: 'needs' and 'reviewers' both set the people who "
            text += "decide on this tool; keep 'needs'."
            yield path, text
