"""Role membership of a person, including roles that Slack has not confirmed yet.

A vote records the roles of its person. Recorded while one of them is open, it would
count for too little, and the same person could not vote again; so nothing is recorded
until Slack has answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.requirement import Role


def holds(reviewer: Reviewer, role: Role) -> bool:
    """Return True if this person holds a role by id or by a group Slack named."""
    return reviewer.user in role.users or not reviewer.usergroups.isdisjoint(
        role.usergroups
    )


def unresolved_roles(reviewer: Reviewer, roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the names of the roles that could not be looked up.

    A role is unresolved when Slack did not say whether this person, or one whom they
    stand in for, holds it, and nothing else shows that one of them does.
    """
    # Slack left nothing open of a member who stands in for nobody.
    is_alone = reviewer.account is AccountKind.MEMBER and not reviewer.stands_in_for
    if is_alone and not reviewer.unknown_groups:
        return ()
    actors = (reviewer, *reviewer.stands_in_for)
    # While the person is unknown, what others handed to them counts for nothing.
    known = () if reviewer.account is AccountKind.UNKNOWN else actors
    members = [one for one in known if one.account is AccountKind.MEMBER]
    return tuple(
        role.name
        for role in roles
        if any(_may_hold(actor, role) for actor in actors)
        and not any(holds(actor, role) for actor in members)
    )


def unresolved_reason(names: Iterable[str], people: Sequence[Reviewer]) -> str:
    """Return the sentence for a click that needs a lookup which failed."""
    who = " or ".join(names)
    return (
        f"Slack did not say who is in {who}, so nothing was recorded. "
        f"{click_again(people)}"
    )


def click_again(people: Sequence[Reviewer]) -> str:
    """Return when a click is worth repeating, as a sentence."""
    actors = [actor for one in people for actor in (one, *one.stands_in_for)]
    wait_s = max((actor.retry_in_s for actor in actors), default=0)
    if wait_s > 1:
        return f"Please click again in {wait_s} seconds."
    return "Please click again in a moment."


def age_ms(reviewer: Reviewer) -> int:
    """Return how old the oldest answer is that this person's roles rest on."""
    actors = (reviewer, *reviewer.stands_in_for)
    return max(actor.membership_age_ms for actor in actors)


def _may_hold(actor: Reviewer, role: Role) -> bool:
    if actor.account is AccountKind.UNKNOWN:
        # An account that Slack did not describe may be in any group.
        return actor.user in role.users or bool(role.usergroups)
    is_open = not actor.unknown_groups.isdisjoint(role.usergroups)
    return actor.account is AccountKind.MEMBER and (holds(actor, role) or is_open)
