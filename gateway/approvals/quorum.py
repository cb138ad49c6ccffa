"""Decide who may vote and whether a quorum is met; combine two requirements.

A vote records the roles of its person. Recorded while Slack has not confirmed one of
them, it would count for too little, and the same person could not vote again; so
nothing is recorded until Slack has answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role, Vote
from keyturn.gateway.protocol.records import Person

_ACCOUNT_REASONS = {
    AccountKind.GUEST: "Guests cannot decide approvals.",
    AccountKind.STRANGER: "People from other organizations cannot decide approvals.",
    AccountKind.BOT: "Bots and workflows cannot decide approvals.",
    AccountKind.DEACTIVATED: "This account is deactivated and cannot decide approvals.",
}

_ASKED = "You asked for this, so someone else has to decide it."

_EDITED = "You edited this, so someone else has to approve it."


@dataclass(frozen=True, slots=True)
class Tally:
    """How far a quorum is.

    Attributes:
        have: distinct people whose votes count.
        need: how many are needed at least.
        lacking: role, or roles joined by "or", to votes that are still missing. It
            leaves out what ``have`` and ``need`` say already.
        is_met: everyone who must agree has agreed.
    """

    have: int
    need: int
    lacking: dict[str, int]
    is_met: bool


def roles_of(reviewer: Reviewer, roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the names of the roles that this person holds, in the order given.

    Roles of those whom they stand in for count; see `standing_in`.
    """
    # As nearly everybody is: a decision asks three times.
    if not reviewer.stands_in_for:
        return tuple([role.name for role in roles if holds(reviewer, role)])
    actors = (reviewer, *reviewer.stands_in_for)
    return tuple(
        role.name for role in roles if any(holds(actor, role) for actor in actors)
    )


def standing_in(
    reviewer: Reviewer,
    roles: Sequence[Role],
    principals: Sequence[Person],
    votes: Sequence[Vote] = (),
    action_hash: str = "",
) -> Reviewer:
    """Return a person with those whom they stand in for here, each for a reason.

    People who could not vote are left out: they are not members, are principals, or
    have voted or been voted for. So are those who add no role to the person's own.
    """
    if not reviewer.stands_in_for:
        return reviewer
    alone = reviewer.with_(stands_in_for=())
    held = set(roles_of(alone, roles))
    needed: list[Reviewer] = []
    for other in reviewer.stands_in_for:
        is_barred = (
            other.account is not AccountKind.MEMBER
            or any(one.is_same(other.person) for one in principals)
            or has_voted(votes, other.person, action_hash)
        )
        added = set(roles_of(other.with_(stands_in_for=()), roles)) - held
        if not is_barred and added:
            # A person who adds no role to those before is left out: their vote is not
            # used up.
            held |= added
            needed.append(other)
    return alone.with_(stands_in_for=tuple(needed))


def ineligible_reason(
    reviewer: Reviewer,
    requirement: Requirement,
    principals: Sequence[Person],
    editors: Sequence[Person] = (),
) -> str | None:
    """Return why this person may not decide, or None when they may.

    The sentence is for the person: calm, without the names of others.

    Args:
        reviewer: who it is, resolved now.
        requirement: who has to agree.
        principals: those who asked for the call, or for whom it was asked.
        editors: those who changed the call and may not approve it therefore.
    """
    if (why := no_member(reviewer)) is not None:
        return why
    if is_among(reviewer.person, (*principals, *editors)):
        return _ASKED if is_among(reviewer.person, principals) else _EDITED
    roles = requirement.roles
    if not any(role.users or role.usergroups for role in roles):
        return "No reviewers are set for this call, so nobody can approve it."
    if roles_of(standing_in(reviewer, roles, (*principals, *editors)), roles):
        return None
    if unresolved := unresolved_roles(reviewer, roles):
        return unresolved_reason(unresolved, [reviewer])
    return _outsider_reason(reviewer, roles)


def _outsider_reason(reviewer: Reviewer, roles: Sequence[Role]) -> str:
    """Return why somebody may not decide who holds none of these roles."""
    names, empty = " or ".join(role.name for role in roles), reviewer.empty_groups
    if any(role.users or {*role.usergroups} - empty for role in roles):
        return f"Only {names} can decide. Please ask one of them."
    return (
        f"Nobody is in {names} now, so nobody can decide this: its user group is empty "
        "or gone. Ask an admin of your Slack workspace to mend that, then click again."
    )


def no_member(reviewer: Reviewer) -> str | None:
    """Return why this account may decide nothing at all; None for a member."""
    if reviewer.account is not AccountKind.UNKNOWN:
        return _ACCOUNT_REASONS.get(reviewer.account)
    again = click_again([reviewer])
    return f"Slack did not say who you are, so nothing was recorded. {again}"


def is_among(person: Person, people: Iterable[Person]) -> bool:
    """Return whether somebody is one of these people."""
    return any(one.is_same(person) for one in people)


def clauses(requirement: Requirement) -> dict[frozenset[str], int]:
    """Return how many holders of which roles a requirement needs.

    All clauses have to hold. A vote counts in each clause that names one of its roles.
    """
    found: dict[frozenset[str], int] = {}
    for part in requirement.parts:
        # Of one role alone, both say how many of it: the higher number holds.
        rows = [(frozenset(role.name for role in part.of), part.approvals)]
        rows += [(frozenset({name}), count) for name, count in part.at_least.items()]
        for names, count in rows:
            # max and not the last: `at_least: {senior: 1}` beside `approvals: 2, of:
            # senior` once made one vote enough.
            found[names] = max(count, found.get(names, 0))
    return found


def missing_votes(
    requirement: Requirement, votes: Sequence[Vote], action_hash: str
) -> dict[frozenset[str], int]:
    """Return the clauses that are not met yet, with how many votes each lacks."""
    needed = clauses(requirement)
    return _missing(needed, _held_by_voters(needed, votes, action_hash))


def tally(requirement: Requirement, votes: Sequence[Vote], action_hash: str) -> Tally:
    """Count the distinct people whose vote is for exactly this action hash."""
    needed = clauses(requirement)
    asked = frozenset[str]().union(*needed)
    held = _held_by_voters(needed, votes, action_hash)
    missing = _missing(needed, held)
    # A requirement has at least one clause, see `Requirement.approvals`.
    need = max(needed.values())
    return Tally(
        have=len(held),
        need=need,
        lacking=_lacking_by_role(missing, asked, left=need - len(held)),
        is_met=not missing,
    )


def asked_again(
    votes: Sequence[Vote], people: Sequence[Reviewer], roles: Sequence[Role]
) -> tuple[Vote, ...]:
    """Return the votes that count now too, with the roles held then and still.

    Of a role that Slack cannot confirm nothing is left; see `doubtful_roles`.

    Args:
        votes: of one action.
        people: who gave them, as resolved now; a missing person is unknown.
        roles: those that are asked for.
    """
    kept = [
        vote.with_(roles=tuple(name for name in vote.roles if name in held))
        for vote in votes
        for held in (set(_still_held(vote, people, roles)),)
    ]
    return tuple(vote for vote in kept if vote.roles)


def doubtful_roles(
    votes: Sequence[Vote], people: Sequence[Reviewer], roles: Sequence[Role]
) -> tuple[str, ...]:
    """Return the roles of these votes that Slack left open when it was asked again."""
    found: dict[str, None] = {}
    for vote in votes:
        voter, *others = _actors(vote, people)
        actors = voter.with_(stands_in_for=tuple(others))
        unresolved = unresolved_roles(actors, roles)
        found |= dict.fromkeys(name for name in vote.roles if name in unresolved)
    return tuple(found)


def stricter(first: Requirement, second: Requirement) -> Requirement:
    """Return a requirement that is met exactly when both are.

    A role that both name is held by those whom both list, and its holders are mentioned
    if either says so. Requirements of the same roles
    become one with the higher numbers, and one that follows from another is left out;
    others stand beside each other.
    """
    if first is second or first == second:
        return first
    merged: dict[tuple[str, ...], Requirement] = {}
    for part in (*first.parts, *second.parts):
        shared = part.with_(
            of=tuple(_shared(role, (first, second)) for role in part.of)
        )
        # Sorted: the same roles in another order are one requirement.
        names = tuple(sorted(role.name for role in shared.of))
        merged[names] = _joined(merged.get(names, shared), shared)
    head, *rest = sorted(_needed(merged.values()), key=lambda part: -part.approvals)
    may_vote = first.editor_may_vote and second.editor_may_vote
    return head.with_(also=tuple(rest), editor_may_vote=may_vote)


def is_possible(requirement: Requirement, barred: Iterable[Person] = ()) -> bool:
    """Return whether a requirement names enough people who are not barred from it.

    A user group may have any number of members.
    """
    out = {person.user for person in barred}
    for names, count in clauses(requirement).items():
        roles = [role for role in requirement.roles if role.name in names]
        people = {user for role in roles for user in role.users} - out
        if len(people) < count and not any(role.usergroups for role in roles):
            return False
    return True


def asks_more(requirement: Requirement, before: Requirement) -> bool:
    """Return whether a requirement needs somebody whom the one before did not need."""
    known = clauses(before)
    return not all(
        _follows(names, count, known) for names, count in clauses(requirement).items()
    )


def has_voted(votes: Sequence[Vote], person: Person, action_hash: str) -> bool:
    """Return whether this person's word for this action hash is used up.

    It is by their own vote, and by that of somebody who stood in for them.
    """
    return bool(votes) and any(
        one.is_same(person)
        for vote in votes
        if vote.action_hash == action_hash
        for one in (vote.by, *vote.on_behalf_of)
    )


def _held_by_voters(
    needed: Iterable[frozenset[str]], votes: Sequence[Vote], action_hash: str
) -> list[frozenset[str]]:
    """Return the roles that count of each distinct voter who holds one of them."""
    asked = frozenset[str]().union(*needed)
    # By person and never by vote: one person with two votes in a record counts once. A
    # vote without a role that counts is no vote, whatever else it holds.
    counted = {
        vote.by.user: asked.intersection(vote.roles)
        for vote in votes
        if vote.action_hash == action_hash
    }
    return [roles for roles in counted.values() if roles]


def _missing(
    needed: Mapping[frozenset[str], int], held: Sequence[frozenset[str]]
) -> dict[frozenset[str], int]:
    missing = {
        names: count - sum(not names.isdisjoint(roles) for roles in held)
        for names, count in needed.items()
    }
    return {names: count for names, count in missing.items() if count > 0}


def _still_held(
    vote: Vote, people: Sequence[Reviewer], roles: Sequence[Role]
) -> tuple[str, ...]:
    """Return what a voter holds, alone or for those for whom they voted."""
    voter, *others = _actors(vote, people)
    if voter.account is not AccountKind.MEMBER:
        return ()
    members = [one for one in others if one.account is AccountKind.MEMBER]
    return roles_of(voter.with_(stands_in_for=tuple(members)), roles)


def _actors(vote: Vote, people: Sequence[Reviewer]) -> list[Reviewer]:
    """Return the voter as resolved now, and those for whom they voted and still may."""
    unknown = Reviewer(team=vote.by.team, user=vote.by.user)
    # A voter who was not asked again is unknown, and an unknown vote completes nothing.
    voter = next((one for one in people if one.person.is_same(vote.by)), unknown)
    others = [
        other
        for other in voter.stands_in_for
        if any(other.person.is_same(one) for one in vote.on_behalf_of)
    ]
    return [voter, *others]


def _lacking_by_role(
    missing: dict[frozenset[str], int], asked: frozenset[str], *, left: int
) -> dict[str, int]:
    """Name what is missing once: not again for roles that include others named."""
    counts: dict[frozenset[str], int] = {}
    for names in sorted(missing, key=lambda one: (len(one), sorted(one))):
        count = missing[names]
        below = sum(counts[one] for one in counts if one < names)
        if below < count and not (names == asked and count <= left):
            counts[names] = count
    return {" or ".join(sorted(names)): count for names, count in counts.items()}


def _needed(parts: Iterable[Requirement]) -> list[Requirement]:
    """Leave out every part that is met whenever another one is."""
    kept = list(parts)
    # A copy, because `kept` shrinks meanwhile; and one by one, so that of two parts
    # which follow from each other one stays.
    for part in [*kept]:
        others = [clauses(one) for one in kept if one is not part]
        own = clauses(part).items()
        if any(all(_follows(*one, known) for one in own) for known in others):
            kept.remove(part)
    return kept


def _follows(
    names: frozenset[str], count: int, known: dict[frozenset[str], int]
) -> bool:
    # As many people of fewer roles: votes that meet that clause meet this one.
    return any(one <= names and known[one] >= count for one in known)


def _shared(role: Role, requirements: tuple[Requirement, Requirement]) -> Role:
    for requirement in requirements:
        for other in requirement.roles:
            if other.name == role.name:
                role = role.with_(
                    # Only those whom both policies list: the one who was taken off the
                    # list must not vote, nor the one who was just added.
                    users=tuple(user for user in role.users if user in other.users),
                    usergroups=tuple(
                        group for group in role.usergroups if group in other.usergroups
                    ),
                    notify=Notify.strongest(role.notify, other.notify),
                )
    return role


def _joined(one: Requirement, other: Requirement) -> Requirement:
    return Requirement(
        approvals=max(one.approvals, other.approvals),
        of=one.of,
        at_least={
            name: max(one.at_least.get(name, 0), other.at_least.get(name, 0))
            for name in one.at_least.keys() | other.at_least.keys()
        },
    )


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
