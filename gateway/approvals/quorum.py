"""Decide who may vote or reject and whether a quorum is met; combine requirements.

An approval needs a reviewer named by the policy who did not ask for the call. A
rejection needs less: a requester may withdraw the call, and an editor who may not
approve the changed call can still reject it. A question is answered by its requesters,
or else by the reviewers.

A vote records the roles of its person. If Slack has not confirmed a role, no vote is
recorded: it would count for too little, and the same person could not vote again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role, Vote
from keyturn.gateway.protocol.records import Person, Verb

_ACCOUNT_REASONS = {
    AccountKind.GUEST: "Guests cannot decide approvals.",
    AccountKind.STRANGER: "People from other organizations cannot decide approvals.",
    AccountKind.BOT: "Bots and workflows cannot decide approvals.",
    AccountKind.DEACTIVATED: "This account is deactivated and cannot decide approvals.",
}

_ASKED = "You asked for this, so someone else has to decide it."

_EDITED = "You edited this, so someone else has to approve it."

NOBODY = (
    "The policy changed in the meantime, and too few people may approve under both "
    "the old and the current policy."
)
_WITHDRAW = "You can reject it if you no longer want it."
_STILL_REJECT = "You can still reject it."


@dataclass(frozen=True, slots=True)
class Tally:
    """Progress of a quorum.

    Attributes:
        have: number of distinct people whose votes count.
        need: minimum number of people.
        lacking: role, or roles joined by "or", to the number of missing votes, without
            those that ``have`` and ``need`` already imply.
        is_met: every clause of the requirement is met.
    """

    have: int
    need: int
    lacking: dict[str, int]
    is_met: bool


def roles_of(reviewer: Reviewer, roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the names of the roles that this person has, in the order given.

    Roles of the people they stand in for count; see `standing_in`.
    """
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
    """Return a person with only the delegators whose roles they need here.

    Delegators who could not vote are dropped: non-members, principals, and people who
    have voted or been voted for. So are delegators who add no role to the person's
    roles.
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
            # Drop a delegator who adds no role: their vote stays unused.
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
        reviewer: the person, resolved now.
        requirement: of the call.
        principals: the people who requested the call, or for whom it was requested.
        editors: people who may not approve the call because they changed it.
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
    names = " or ".join(role.name for role in roles)
    return f"Only {names} can decide. Please ask one of them."


def no_member(reviewer: Reviewer) -> str | None:
    """Return why this account may never decide; None for a member."""
    if reviewer.account is not AccountKind.UNKNOWN:
        return _ACCOUNT_REASONS.get(reviewer.account)
    again = try_again([reviewer])
    return f"Slack did not say who you are, so nothing was recorded. {again}"


def is_among(person: Person, people: Iterable[Person]) -> bool:
    """Return True if the person is one of these people."""
    return any(one.is_same(person) for one in people)


def clauses(requirement: Requirement) -> dict[frozenset[str], int]:
    """Return the clauses of a requirement: sets of role names to numbers of votes.

    All clauses must be met. A vote counts in each clause that names one of its roles.
    """
    found: dict[frozenset[str], int] = {}
    for part in requirement.parts:
        names = frozenset(role.name for role in part.of)
        # Two parts of the same roles: the higher number counts.
        found[names] = max(part.approvals, found.get(names, 0))
    return found


def missing_votes(
    requirement: Requirement, votes: Sequence[Vote], action_hash: str
) -> dict[frozenset[str], int]:
    """Return the unmet clauses, with the number of votes that each lacks."""
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
    """Return the votes that still count, with the roles their people still have.

    A role that Slack cannot confirm is dropped; see `doubtful_roles`.

    Args:
        votes: of one action.
        people: the voters, as resolved now; a missing voter is unknown.
        roles: of the requirement.
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
    """Return the roles of these votes that Slack could not confirm again."""
    found: dict[str, None] = {}
    for vote in votes:
        voter, *others = _actors(vote, people)
        actors = voter.with_(stands_in_for=tuple(others))
        unresolved = unresolved_roles(actors, roles)
        found |= dict.fromkeys(name for name in vote.roles if name in unresolved)
    return tuple(found)


def stricter(first: Requirement, second: Requirement) -> Requirement:
    """Return a requirement that is met exactly when both are.

    A role in both requirements keeps only the people on both lists, and the stronger of
    the two ``notify`` values. Requirements of the same roles merge, with the higher
    numbers. A requirement that another one implies is dropped; the others are all kept.
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
        known = merged.get(names, shared)
        most = max(known.approvals, shared.approvals)
        merged[names] = known.with_(approvals=most)
    head, *rest = sorted(_needed(merged.values()), key=lambda part: -part.approvals)
    may_vote = first.editor_may_vote and second.editor_may_vote
    return head.with_(also=tuple(rest), editor_may_vote=may_vote)


def is_possible(requirement: Requirement, barred: Iterable[Person] = ()) -> bool:
    """Return True if the roles of a requirement list enough people not barred.

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
    """Return True if a requirement needs votes that the one before did not need."""
    known = clauses(before)
    return not all(
        _follows(names, count, known) for names, count in clauses(requirement).items()
    )


def has_voted(votes: Sequence[Vote], person: Person, action_hash: str) -> bool:
    """Return True if this person's vote for this action hash is used up.

    Their own vote uses it up, and so does the vote of a person who stood in for them.
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
    """Return the relevant roles of each distinct voter who has at least one."""
    asked = frozenset[str]().union(*needed)
    # By person and not by vote: one person with two votes in a record counts once. A
    # vote without a relevant role is no vote.
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
    """Return the roles of a voter and of the delegators they voted for."""
    voter, *others = _actors(vote, people)
    if voter.account is not AccountKind.MEMBER:
        return ()
    members = [one for one in others if one.account is AccountKind.MEMBER]
    return roles_of(voter.with_(stands_in_for=tuple(members)), roles)


def _actors(vote: Vote, people: Sequence[Reviewer]) -> list[Reviewer]:
    """Return the voter as resolved now, and the delegators they may still vote for."""
    unknown = Reviewer(team=vote.by.team, user=vote.by.user)
    # A missing voter is unknown, and the vote of an unknown person completes nothing.
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
    """Name each missing vote once: skip a set of roles if its subsets cover it."""
    counts: dict[frozenset[str], int] = {}
    for names in sorted(missing, key=lambda one: (len(one), sorted(one))):
        count = missing[names]
        below = sum(counts[one] for one in counts if one < names)
        if below < count and not (names == asked and count <= left):
            counts[names] = count
    return {" or ".join(sorted(names)): count for names, count in counts.items()}


def _needed(parts: Iterable[Requirement]) -> list[Requirement]:
    """Drop every part that another part implies."""
    kept = list(parts)
    # Iterate over a copy, because `kept` shrinks; one by one, so that of two parts that
    # imply each other one stays.
    for part in [*kept]:
        others = [clauses(one) for one in kept if one is not part]
        own = clauses(part).items()
        if any(all(_follows(*one, known) for one in own) for known in others):
            kept.remove(part)
    return kept


def _follows(
    names: frozenset[str], count: int, known: dict[frozenset[str], int]
) -> bool:
    # At least as many votes of fewer roles: votes that meet that clause meet this one.
    return any(one <= names and known[one] >= count for one in known)


def _shared(role: Role, requirements: tuple[Requirement, Requirement]) -> Role:
    for requirement in requirements:
        for other in requirement.roles:
            if other.name == role.name:
                role = role.with_(
                    # Only people on both lists may vote: neither a person who was
                    # removed from the list nor one who was just added.
                    users=tuple(user for user in role.users if user in other.users),
                    usergroups=tuple(
                        group for group in role.usergroups if group in other.usergroups
                    ),
                    notify=Notify.strongest(role.notify, other.notify),
                )
    return role


def holds(reviewer: Reviewer, role: Role) -> bool:
    """Return True if this person has a role by user id or by a confirmed user group."""
    return reviewer.user in role.users or not reviewer.usergroups.isdisjoint(
        role.usergroups
    )


def unresolved_roles(reviewer: Reviewer, roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the names of the roles that could not be looked up.

    A role is unresolved if Slack did not confirm or deny it for this person, or a
    delegator of theirs, and none of them is known to have it.
    """
    actors = (reviewer, *reviewer.stands_in_for)
    # Delegations to an unknown person do not count.
    known = () if reviewer.account is AccountKind.UNKNOWN else actors
    members = [one for one in known if one.account is AccountKind.MEMBER]
    return tuple(
        role.name
        for role in roles
        if any(_may_hold(actor, role) for actor in actors)
        and not any(holds(actor, role) for actor in members)
    )


def unresolved_reason(names: Iterable[str], people: Sequence[Reviewer]) -> str:
    """Return the sentence for a click that needs a failed lookup."""
    who = " or ".join(names)
    return (
        f"It could not be checked who is in {who}, so nothing was recorded. "
        f"{try_again(people)}"
    )


def try_again(people: Sequence[Reviewer]) -> str:
    """Return when to decide again, as a sentence."""
    actors = [actor for one in people for actor in (one, *one.stands_in_for)]
    wait_s = max((actor.retry_in_s for actor in actors), default=0)
    if wait_s > 1:
        return f"Please try again in {wait_s} seconds."
    return "Please try again in a moment."


def age_ms(reviewer: Reviewer) -> int:
    """Return the age of the oldest lookup behind this person's roles."""
    actors = (reviewer, *reviewer.stands_in_for)
    return max(actor.membership_age_ms for actor in actors)


def _may_hold(actor: Reviewer, role: Role) -> bool:
    if actor.account is AccountKind.UNKNOWN:
        # An account that Slack did not describe may be in any group.
        return actor.user in role.users or bool(role.usergroups)
    is_open = not actor.unknown_groups.isdisjoint(role.usergroups)
    return actor.account is AccountKind.MEMBER and (holds(actor, role) or is_open)


def denial_reason(
    approval: Approval,
    item: Item,
    reviewer: Reviewer,
    verb: Verb,
    *,
    requirement: Requirement | None = None,
    then_and_now: Sequence[Requirement] = (),
) -> str | None:
    """Return why a person may not decide this, as a sentence for them; None: they may.

    Args:
        approval: the card.
        item: the call on it.
        reviewer: the person, resolved now.
        verb: of the intended decision.
        requirement: to check; None for the one pinned in the item.
        then_and_now: the requirements of the old and of the current policy. A reviewer
            of either may reject.
    """
    requirement = requirement or item.requirement
    if item.is_question:
        return _why_not_answer(approval, reviewer, requirement)
    then_and_now = tuple(then_and_now) or (requirement,)
    asked = is_among(reviewer.person, approval.principals)
    if verb is Verb.REJECT:
        own = no_member(reviewer)
        return own if asked else _why_not_reject(reviewer, then_and_now)
    barred = editors(item, requirement)
    why = ineligible_reason(reviewer, requirement, approval.principals, barred)
    if why is None or no_member(reviewer):
        return why
    # Only if the two policies together leave nobody: a policy that alone names too few
    # people gets its own message.
    was_possible = not any(is_dead_end(approval, item, one) for one in then_and_now)
    if was_possible and is_dead_end(approval, item, requirement):
        why = NOBODY
    if Verb.REJECT not in item.allow:
        return why
    if asked:
        return f"{why} {_WITHDRAW}"
    may_reject = _why_not_reject(reviewer, then_and_now) is None
    return f"{why} {_STILL_REJECT}" if may_reject else why


def is_dead_end(approval: Approval, item: Item, requirement: Requirement) -> bool:
    """Return True if too few eligible people are left to approve or answer a call."""
    if item.is_question:
        return not (approval.principals or is_possible(requirement))
    barred = (*approval.principals, *editors(item, requirement))
    return not is_possible(requirement, barred)


def editors(item: Item, requirement: Requirement) -> tuple[Person, ...]:
    """Return the people who may not approve a call because they changed it.

    Editors of earlier changes are included.
    """
    if requirement.editor_may_vote or item.edit is None:
        return item.principals
    return (*item.principals, item.edit.by)


def _why_not_answer(
    approval: Approval, reviewer: Reviewer, requirement: Requirement
) -> str | None:
    if is_among(reviewer.person, approval.principals):
        return no_member(reviewer)
    why = ineligible_reason(reviewer, requirement, ())
    if why is None or no_member(reviewer):
        return why
    if not is_possible(requirement):
        return "Only the requester can answer."
    return f"{why} The requester can answer too."


def _why_not_reject(
    reviewer: Reviewer, then_and_now: Sequence[Requirement]
) -> str | None:
    """Return why a person may not reject, by the last (current) requirement."""
    why = None
    for requirement in then_and_now:
        why = ineligible_reason(reviewer, requirement, ())
        if why is None:
            return None
    return why
