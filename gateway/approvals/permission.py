"""Check whether a person may approve, edit, respond to or reject a call.

An approval needs a reviewer named by the policy who did not ask for the call. A
rejection needs less: a requester may withdraw the call, and an editor who may not
approve the changed call can still reject it. A question is answered by its requesters,
or else by the reviewers.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.protocol.records import Person, Verb

NOBODY = (
    "The policy changed in the meantime, and too few people may approve under both "
    "the old and the current policy."
)
_WITHDRAW = "You can reject it if you no longer want it."
_STILL_REJECT = "You can still reject it."


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
    asked = quorum.is_among(reviewer.person, approval.principals)
    if verb is Verb.REJECT:
        own = quorum.no_member(reviewer)
        return own if asked else _why_not_reject(reviewer, then_and_now)
    barred = editors(item, requirement)
    why = quorum.ineligible_reason(reviewer, requirement, approval.principals, barred)
    if why is None or quorum.no_member(reviewer):
        return why
    # Only if the two policies together leave nobody: a policy that alone names too few
    # people gets its own message.
    was_possible = not any(is_dead_end(approval, item, one) for one in then_and_now)
    is_for_nobody = was_possible and is_dead_end(approval, item, requirement)
    if is_for_nobody:
        why = NOBODY
    if Verb.REJECT not in item.allow:
        return why
    if asked:
        return f"{why} {_WITHDRAW}"
    is_editor = quorum.is_among(reviewer.person, barred)
    has_cause = is_editor or is_for_nobody
    may_reject = has_cause and _why_not_reject(reviewer, then_and_now) is None
    return f"{why} {_STILL_REJECT}" if may_reject else why


def is_dead_end(approval: Approval, item: Item, requirement: Requirement) -> bool:
    """Return True if too few eligible people are left to approve or answer a call."""
    if item.is_question:
        return not (approval.principals or quorum.is_possible(requirement))
    barred = (*approval.principals, *editors(item, requirement))
    return not quorum.is_possible(requirement, barred)


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
    if quorum.is_among(reviewer.person, approval.principals):
        return quorum.no_member(reviewer)
    why = quorum.ineligible_reason(reviewer, requirement, ())
    if why is None or quorum.no_member(reviewer):
        return why
    if not quorum.is_possible(requirement):
        return "Only the requester can answer."
    return f"{why} The requester can answer too."


def _why_not_reject(
    reviewer: Reviewer, then_and_now: Sequence[Requirement]
) -> str | None:
    """Return why a person may not reject, by the last (current) requirement."""
    why = None
    for requirement in then_and_now:
        why = quorum.ineligible_reason(reviewer, requirement, ())
        if why is None:
            return None
    return why
