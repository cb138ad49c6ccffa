"""Check whether a person may approve, edit, respond to or reject a call.

Approving takes somebody whom the policy names and who did not ask for the call. Saying
no takes less: whoever asked may take it back, and whoever changed the call so that they
may not approve it can reject it as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from twokey.gateway.approvals import quorum
from twokey.gateway.approvals.decisions import Reviewer
from twokey.gateway.approvals.people import Requirement
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.verbs import Verb

NOBODY = (
    "The policy changed while this waited, and too few people are allowed to approve "
    "it by both the policy of then and of now."
)
_WITHDRAW = "You can reject it if you no longer want it."
_STILL_REJECT = "You can still reject it."


def objection(
    approval: Approval,
    item: Item,
    reviewer: Reviewer,
    verb: Verb,
    *,
    requirement: Requirement | None = None,
    circles: Sequence[Requirement] = (),
) -> str | None:
    """Return why a person may not say this, as a sentence for them; None: they may.

    Args:
        approval: the card.
        item: the call on it.
        reviewer: who it is, resolved now.
        verb: what they want to say.
        requirement: who has to agree; None for what is pinned in the item.
        circles: who had to agree by the policy of then, and who has to by that of now.
            Anybody of either may reject.
    """
    requirement = requirement or item.requirement
    circles = tuple(circles) or (requirement,)
    asked = quorum.is_among(reviewer.person, approval.principals)
    if verb is Verb.REJECT:
        return quorum.no_member(reviewer) if asked else _no(reviewer, circles)
    barred = editors(item, requirement)
    why = quorum.objection(reviewer, requirement, approval.principals, barred)
    if why is None or quorum.no_member(reviewer):
        return why
    was_possible = not any(is_dead_end(approval, item, one) for one in circles)
    is_for_nobody = was_possible and is_dead_end(approval, item, requirement)
    if is_for_nobody:
        why = NOBODY
    if Verb.REJECT not in item.allow:
        return why
    if asked:
        return f"{why} {_WITHDRAW}"
    is_editor = quorum.is_among(reviewer.person, barred)
    may_reject = (is_editor or is_for_nobody) and _no(reviewer, circles) is None
    return f"{why} {_STILL_REJECT}" if may_reject else why


def is_dead_end(approval: Approval, item: Item, requirement: Requirement) -> bool:
    """Return whether nobody, or not enough people, may approve a call any more."""
    barred = (*approval.principals, *editors(item, requirement))
    return not quorum.is_possible(requirement, barred)


def editors(item: Item, requirement: Requirement) -> tuple[Person, ...]:
    """Return those who changed the call and may not approve it therefore."""
    if requirement.editor_may_vote or item.edit is None:
        return item.principals
    return (*item.principals, item.edit.by)


def _no(reviewer: Reviewer, circles: Sequence[Requirement]) -> str | None:
    """Say why somebody may not reject; the circle of now, the last one, says it."""
    why = None
    for circle in circles:
        why = quorum.objection(reviewer, circle, ())
        if why is None:
            return None
    return why
