"""Turn the requirements that a policy names into demands, and join them.

``all`` asks for different people for each part. By Hall's theorem there are such people
exactly when, for every choice among the parts, as many people hold one of its roles as
the chosen parts need together. So each choice becomes a condition of its own, and votes
are only ever counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import combinations

from twokey.gateway.approvals.people import Demand
from twokey.gateway.approvals.quorum import stricter
from twokey.gateway.policy.requirement_rules import PartRule
from twokey.gateway.policy.rules import Policy


def required(policy: Policy, name: str) -> Demand:
    """Return who must agree by a requirement; nobody can by one that is unknown."""
    rule = policy.requirements.get(name)
    if rule is None:
        return Demand(approvals=1, of=())
    if rule.of is not None:
        demand = Demand(
            approvals=rule.approvals or 1,
            of=policy.roles_named(rule.of),
            at_least=dict(rule.at_least),
        )
    else:
        demand = joined(_choices(policy, rule.all_ or ()))
    return demand.with_(editor_may_vote=rule.editor_may_vote)


def joined(demands: Iterable[Demand]) -> Demand:
    """Return a demand that is met exactly when all of these are; there is one."""
    return reduce(stricter, demands)


def _choices(policy: Policy, parts: tuple[PartRule, ...]) -> Iterator[Demand]:
    for size in range(1, len(parts) + 1):
        for chosen in combinations(parts, size):
            names = dict.fromkeys(name for part in chosen for name in part.of)
            yield Demand(
                approvals=sum(part.approvals for part in chosen),
                of=policy.roles_named(tuple(names)),
            )
