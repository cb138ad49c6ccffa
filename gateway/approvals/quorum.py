"""Say who must agree, who may, and whether they have. Empty means refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gateway.approvals.decisions import Reviewer, Standing
from gateway.approvals.record import Demand, Person, Record, Role, Vote

_STANDING_REASONS = {
    Standing.GUEST: "Guests cannot decide approvals.",
    Standing.STRANGER: "People from other organizations cannot decide approvals.",
    Standing.BOT: "Bots and workflows cannot decide approvals.",
    Standing.DEACTIVATED: "This account is deactivated and cannot decide approvals.",
    Standing.UNKNOWN: "Slack did not say who you are, so nothing was recorded. "
    "Please try again in a moment.",
}


class Tally(Record):
    """How far a quorum is: ``have`` of ``need`` votes, and which roles still lack."""

    have: int
    need: int
    lacking: dict[str, int]

    @property
    def is_met(self) -> bool:
        """Say whether everyone who must agree has agreed."""
        return self.have >= self.need and not self.lacking


def roles_of(reviewer: Reviewer, roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the names of the roles that this person holds, in the order given."""
    return tuple(role.name for role in roles if _holds(reviewer, role))


def objection(
    reviewer: Reviewer, demand: Demand, principals: Sequence[Person]
) -> str | None:
    """Return why this person may not decide, or None when they may.

    The sentence is for the person: calm, without the names of others.
    """
    if reviewer.standing is not Standing.MEMBER:
        return _STANDING_REASONS[reviewer.standing]
    if any(principal.is_same(reviewer.person) for principal in principals):
        return (
            "You asked for this one yourself (or your edit raised what it needs), "
            "so somebody else has to decide it."
        )
    if not any(role.users or role.usergroups for role in demand.of):
        return "No reviewers are set for this call, so nobody can approve it."
    if roles_of(reviewer, demand.of):
        return None
    if reviewer.usergroups is None and any(role.usergroups for role in demand.of):
        return (
            "Slack did not say which user groups you are in, so nothing was "
            "recorded. Please try again in a moment."
        )
    names = " or ".join(role.name for role in demand.of)
    return f"Only {names} can decide this, and you are not on that list."


def tally(demand: Demand, votes: Sequence[Vote], action_hash: str) -> Tally:
    """Count the distinct people whose vote is for exactly this action hash."""
    counted = {
        (vote.by.team, vote.by.user): vote
        for vote in votes
        if vote.action_hash == action_hash and vote.roles
    }
    held = Counter(name for vote in counted.values() for name in set(vote.roles))
    lacking = {
        role: needed - held[role]
        for role, needed in demand.at_least.items()
        if held[role] < needed
    }
    return Tally(have=len(counted), need=demand.approvals, lacking=lacking)


def has_voted(votes: Sequence[Vote], person: Person, action_hash: str) -> bool:
    """Say whether this person already voted for this action hash."""
    return any(
        vote.by.is_same(person) and vote.action_hash == action_hash for vote in votes
    )


def _holds(reviewer: Reviewer, role: Role) -> bool:
    if reviewer.user in role.users:
        return True
    return bool(reviewer.usergroups and reviewer.usergroups & set(role.usergroups))
