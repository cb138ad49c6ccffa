"""Resolve the requirements that a policy names, and combine them.

``all`` asks for different people for each part. By Hall's theorem there are such people
exactly when, for every choice among the parts, as many people hold one of its roles as
the chosen parts need together. So each choice becomes a condition of its own, and votes
are only ever counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import combinations

from twokey.gateway.approvals.quorum import stricter
from twokey.gateway.approvals.requirement import Requirement
from twokey.gateway.policy.requirement_rules import PartRule
from twokey.gateway.policy.rules import Policy


def required(policy: Policy, name: str) -> Requirement:
    """Return who must agree by a requirement; nobody can by one that is unknown."""
    rule = policy.requirements.get(name)
    if rule is None:
        # Reached by a policy that a program makes: the file would have been refused at
        # load.
        return Requirement(approvals=1, of=())
    if rule.of is not None:
        requirement = Requirement(
            approvals=rule.approvals or 1,
            of=policy.roles_named(rule.of),
            at_least=dict(rule.at_least),
        )
    else:
        requirement = joined(_choices(policy, rule.all_ or ()))
    return requirement.with_(editor_may_vote=rule.editor_may_vote)


def joined(requirements: Iterable[Requirement]) -> Requirement:
    """Return a requirement that is met exactly when all of these are; there is one."""
    return reduce(stricter, requirements)


def _choices(policy: Policy, parts: tuple[PartRule, ...]) -> Iterator[Requirement]:
    for size in range(1, len(parts) + 1):
        for chosen in combinations(parts, size):
            names = dict.fromkeys(name for part in chosen for name in part.of)
            yield Requirement(
                approvals=sum(part.approvals for part in chosen),
                of=policy.roles_named(tuple(names)),
            )
