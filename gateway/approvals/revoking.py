"""Re-check an authorization when its call is claimed: keep it, end it, or reopen it.

Time passes between a decision and the execution. The claim evaluates the current
policy, which can only tighten the decision. A forbidden call ends. A call that needs
more people goes back to them; so does a call whose business state has changed since the
approval.
"""

from __future__ import annotations

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change, by_gateway, ended, raised_item
from keyturn.gateway.approvals.editing import edited_document
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Requirement, Revocation, Role, Vote
from keyturn.gateway.approvals.standing import was_taken_back
from keyturn.gateway.approvals.timing import LONGEST, with_end
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import BusinessState, with_state
from keyturn.gateway.protocol.records import Person, Reading, Tier, Verb

FORBIDDEN = "The policy changed after this call was approved and no longer allows it."
TOO_OLD = (
    "The policy changed after this call was approved, and an approval as old as this "
    "one may no longer be used."
)
NOBODY = (
    "The policy changed after this call was approved, and nobody may approve it by "
    "both the policy of then and of now."
)
NEEDS_A_PERSON = (
    "The policy changed after this call was cleared: it needs a person now."
)
NOT_COVERED = (
    "The standing approval that let this call run does not cover it any more: it was "
    "taken back, the policy changed, or its rules ask for more now."
)
STATE_CHANGED = "What this call depends on changed after it was approved."
READ_OTHERWISE = (
    "The tool reads this change in another way, so nothing ran. Edit opens with what "
    "the tool would run with."
)
REFUSED_BY_TOOL = (
    "The tool does not accept this change, so nothing ran. Edit the call again or "
    "reject it."
)
NEEDS_MORE = (
    "The policy changed, or its rules ask for more now, after this call was approved: "
    "what was said so far is not enough any more."
)

_CAN_APPROVE = frozenset({Verb.APPROVE, Verb.EDIT})


def revoke(
    approval: Approval,
    item: Item,
    policy_now: PolicyDecision,
    *,
    now_ms: int,
    standing: Approval | None = None,
) -> Change | None:
    """Return the change that revokes an authorized item; None when it may run.

    Args:
        approval: the current record.
        item: an authorized item of ``approval``.
        policy_now: the current policy's decision on the arguments that would run.
        now_ms: the store's clock.
        standing: the current record of the standing approval that covered it, if any.
    """
    if item.is_auto_approved:
        # It never goes to people: its agent does not wait for them.
        reason = _why_uncleared(approval, item, policy_now, standing)
        return _ended(approval, item, policy_now, reason, now_ms) if reason else None
    requirement = quorum.stricter(item.requirement, policy_now.requirement)
    # Do not ask Slack: a claim comes from an agent at any time, and must not wait for
    # the group memberships of earlier voters.
    votes = _still_counting(item, requirement)
    # A policy under which this tool cannot be approved any more forbids it as well.
    if policy_now.tier is Tier.DENY or not _CAN_APPROVE & set(policy_now.allow):
        reason = FORBIDDEN
    elif _is_too_old(item, policy_now, now_ms):
        reason = TOO_OLD
    elif quorum.tally(requirement, votes, item.action_hash).is_met:
        return None
    # End the call instead of asking again: a card without possible approvers would only
    # wait until it expires.
    elif quorum.is_dead_end(approval, item, requirement):
        reason = NOBODY
    else:
        item = item.with_(votes=votes)
        return _asked_anew(approval, item, policy_now, NEEDS_MORE, now_ms)
    return _ended(approval, item, policy_now, reason, now_ms)


def _why_uncleared(
    approval: Approval,
    item: Item,
    policy_now: PolicyDecision,
    standing: Approval | None,
) -> str:
    """Return why a call that opened authorized may not run; "" if it may."""
    is_same = policy_now.policy_digest == approval.policy_digest
    is_cleared = policy_now.tier.is_auto_approved
    if item.cover is not None:
        asks_more = quorum.asks_more(policy_now.requirement, item.requirement)
        is_as_then = is_same and policy_now.tier is item.tier and not asks_more
        is_covered = not was_taken_back(standing) and (is_cleared or is_as_then)
        return "" if is_covered else NOT_COVERED
    # Under the same policy only facts have changed, such as the totals of windows; the
    # facts at the opening count.
    if is_same or is_cleared:
        return ""
    return FORBIDDEN if policy_now.tier is Tier.DENY else NEEDS_A_PERSON


def ask_in_new_state(
    approval: Approval,
    item: Item,
    state: BusinessState,
    policy_now: PolicyDecision,
    *,
    now_ms: int,
) -> Change:
    """Ask people again about an authorized call, in its new business state.

    The state is part of the action, so no earlier vote counts.

    Raises:
        BadJson: when the new state makes the document too large.
    """
    document = with_state(item.action, state)
    edit = item.edit
    if edit is not None:
        # The state changes the document, and the record of the edit has to match:
        # codec.py refuses an approval with inconsistent hashes.
        edit = edit.with_(edited_hash=digest.action_hash(document))
    changed = item.with_(action=document, edit=edit, votes=())
    return _asked_anew(approval, changed, policy_now, STATE_CHANGED, now_ms)


def ask_as_read(
    approval: Approval,
    item: Item,
    reading: Reading,
    policy_now: PolicyDecision,
    *,
    now_ms: int,
) -> Change | None:
    """Ask people again about an edited call, with the tool's reading of the edit.

    None if the reading is of other arguments, or equal to the edit.

    Raises:
        BadJson: when no document can contain the tool's reading.
    """
    if item.edit is None or reading.action_hash != item.action_hash:
        return None
    reason = REFUSED_BY_TOOL
    if reading.args is not None:
        if edited_document(item, reading.args) == item.action:
            return None
        reason = READ_OTHERWISE
    anew = item.with_(votes=())
    return _asked_anew(approval, anew, policy_now, reason, now_ms, reading=reading)


def _is_too_old(item: Item, policy_now: PolicyDecision, now_ms: int) -> bool:
    """Return True if the current policy accepts no authorization of this age.

    A call that was started before keeps the end set by its authorization.
    """
    # 0: the policy sets no age.
    if item.fence or not policy_now.authorization_ms:
        return False
    return now_ms >= item.changed_at_ms + policy_now.authorization_ms


def _ended(
    approval: Approval, item: Item, policy_now: PolicyDecision, reason: str, now_ms: int
) -> Change:
    by, lapse = policy_now.policy_digest, Transition.LAPSE
    return ended(approval, item, lapse, reason, now_ms, policy_digest=by)


def _asked_anew(
    approval: Approval,
    item: Item,
    policy_now: PolicyDecision,
    reason: str,
    now_ms: int,
    *,
    reading: Reading | None = None,
) -> Change:
    """Ask people again about a call, with a new deadline and a new version.

    The version invalidates every click on an older card.
    """
    times = item.revoked.times if item.revoked else 0
    why = Revocation(reason=reason, at_ms=now_ms, times=times + 1)
    if reading is not None:
        why = why.with_(reading=reading, unused_fence=_unused_fence(item))
    waiting = raised_item(item, policy_now).moved(
        Transition.REOPEN, now_ms, decision=None, revoked=why
    )
    ttl_ms = policy_now.ttl_ms or approval.ttl_ms
    waiting = waiting.with_(
        expires_at_ms=now_ms + ttl_ms,
        # From now on and not from the opening, which may be longer ago than the longest
        # extension.
        latest_at_ms=now_ms + LONGEST * ttl_ms,
    )
    return by_gateway(
        with_end(approval, waiting),
        waiting,
        policy_now.policy_digest,
        version=approval.version + 1,
    )


def _unused_fence(item: Item) -> int:
    before = item.revoked.unused_fence if item.revoked else 0
    # Its agent returned the only claim since then, to have people read the edit.
    return item.fence if item.fence <= before + 1 else before


def _still_counting(item: Item, requirement: Requirement) -> tuple[Vote, ...]:
    """Return the votes for the current action, with the roles still in the policy.

    The memberships of Slack's user groups are not known here. A person who had a role
    by a group keeps it while the policy names a group for that role.
    """
    then = {role.name: role for role in item.requirement.roles}
    kept = [
        vote.with_(
            roles=tuple(
                role.name
                for role in requirement.roles
                if _holds(vote, role, then.get(role.name))
            )
        )
        for vote in item.votes
        if vote.action_hash == item.action_hash
        # The current policy may bar editors from voting where the old one did not.
        and not quorum.is_among(vote.by, quorum.editors(item, requirement))
    ]
    return tuple(vote for vote in kept if vote.roles)


def _holds(vote: Vote, role: Role, then: Role | None) -> bool:
    actors: tuple[Person, ...] = (vote.by, *vote.on_behalf_of)
    if any(actor.user in role.users for actor in actors):
        return True
    # A role without a group belongs only to the people listed by id.
    if role.name not in vote.roles or not role.usergroups:
        return False
    # A person who was removed from the list has lost the role; so has their stand-in.
    return then is None or all(actor.user not in then.users for actor in actors)
