"""Reconcile an execution in doubt from findings of people.

It needs the same people as the call itself, and they have to agree. Each finding is
kept with its note, and the doubt ends when enough people found the same.
"""

from __future__ import annotations

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change, following
from keyturn.gateway.approvals.decision_context import DecisionContext, event_of
from keyturn.gateway.approvals.decisions import (
    Changed,
    Forbidden,
    Invalid,
    Reconcile,
    Refusal,
    Stale,
    Voted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.requirement import Observation, Requirement
from keyturn.gateway.protocol.records import Finding, ItemState, Tier, Verb

MAX_NOTE = 3000
"""Longest note: the limit of one Slack text input."""

_WENT_ON = (
    "Nobody was asked about this call, so its agent did not wait and went on. It can "
    "make the call again."
)
_MOVES = {
    Finding.EXECUTED: Transition.EXECUTE,
    Finding.RERUN: Transition.RETRY,
    Finding.SKIP: Transition.FAIL,
}


def reconcile(context: DecisionContext, decision: Reconcile) -> Change | Refusal:
    """Record a person's finding; reconcile the call when enough found the same."""
    refusal = _not_open(context) or _not_permitted(context, decision)
    if refusal is not None:
        return refusal
    requirement = _requirement(context, decision.finding)
    mine = _observation(context, decision, requirement)
    # A second finding of a person replaces their first.
    others = tuple(
        one for one in context.item.observations_now if not one.vote.by.is_same(mine.by)
    )
    same = tuple(one.vote for one in others if one.finding is mine.finding)
    item = context.item.with_(observations=(*others, mine))
    count = quorum.tally(requirement, (*same, mine.vote), item.action_hash)
    if count.is_met:
        doubtful = quorum.doubtful_roles(same, context.voters, requirement.roles)
        if doubtful:
            return Forbidden(reason=quorum.unresolved_reason(doubtful, context.voters))
        still = quorum.asked_again(same, context.voters, requirement.roles)
        count = quorum.tally(requirement, (*still, mine.vote), item.action_hash)
    if count.is_met:
        return _reconciled(context, item, mine)
    approval = following(context.approval, item)
    voted = Voted(approval=approval, index=item.index, have=count.have, need=count.need)
    event = _event(context, item, mine, EventName.ITEM_OBSERVED)
    return Change(approval, (event,), voted)


def _reconciled(context: DecisionContext, item: Item, mine: Observation) -> Change:
    reconciled = item.moved(
        _MOVES[mine.finding],
        context.now_ms,
        finding=mine.finding,
        # Any later report by this attempt's owner is late.
        reconciled_fence=item.fence,
    )
    again = mine.finding is Finding.RERUN
    if again:
        # The result of the last attempt is not a result of the next one.
        reconciled = reconciled.with_(result=None, lapses_at_ms=context.lapses_at_ms)
    # Findings about this attempt do not apply to the next one: see `_not_open`.
    version = context.approval.version + again
    approval = following(context.approval, reconciled, version=version)
    event = _event(context, reconciled, mine, EventName.ITEM_RECONCILED)
    return Change(approval, (event.with_(version=version),), resumes=True)


def _event(
    context: DecisionContext, item: Item, mine: Observation, name: EventName
) -> Event:
    event = event_of(context, item, name, context.approval.version)
    noted = {"note": mine.note} if mine.note else {}
    return event.with_(reason=mine.finding.value, data=event.data | noted)


def _observation(
    context: DecisionContext, decision: Reconcile, requirement: Requirement
) -> Observation:
    note = decision.note.strip()
    return Observation(
        finding=decision.finding,
        vote=context.vote(
            context.item,
            requirement.roles,
            verb=None,
            finding=decision.finding,
            note=note,
        ),
        note=note,
        fence=context.item.fence,
    )


def _not_open(context: DecisionContext) -> Refusal | None:
    approval, item = context.approval, context.item
    # No deadline is checked: a doubt does not expire.
    if item.state is not ItemState.IN_DOUBT:
        return Stale.of(item)
    click = context.click
    if click.version != approval.version or click.action_hash != item.action_hash:
        return Changed(seen_version=click.version, version=approval.version)
    return None


def _not_permitted(context: DecisionContext, decision: Reconcile) -> Refusal | None:
    item = context.item
    # Slack's form limits it as well, but a program may call this.
    if len(decision.note) > MAX_NOTE:
        problem = f"This is {len(decision.note)} characters, {MAX_NOTE} are allowed."
        return Invalid(errors={"/note": problem})
    requirement = _requirement(context, decision.finding)
    reason = quorum.ineligible_reason(
        context.reviewer, requirement, context.approval.principals, item.principals
    )
    if reason is None and decision.finding is Finding.RERUN:
        reason = _no_rerun(context)
    if reason is not None:
        return Forbidden(reason=reason)
    if unresolved := quorum.unresolved_roles(context.resolved, requirement.roles):
        return Forbidden(
            reason=quorum.unresolved_reason(unresolved, [context.resolved])
        )
    if any(
        one.finding is decision.finding and one.vote.by.is_same(context.reviewer.person)
        for one in item.observations_now
    ):
        return Forbidden(
            reason="Your answer is already counted. More people are needed."
        )
    return None


def _requirement(context: DecisionContext, finding: Finding) -> Requirement:
    """Return the requirement: the call's, and for a rerun also the current policy's.

    A policy that cannot be met any more must not keep a doubt open for ever.
    """
    is_again = finding is Finding.RERUN
    return context.requirement if is_again else context.item.requirement


def _no_rerun(context: DecisionContext) -> str | None:
    """Return why this call may not run again; None if it may."""
    item, policy_now = context.item, context.policy_now
    # Its agent went on without the call, so the result of a second run would be lost.
    if item.is_auto_approved:
        return _WENT_ON
    if policy_now and policy_now.stopped:
        return policy_now.stopped
    verb = item.decision.verb if item.decision else Verb.APPROVE
    if policy_now and (policy_now.tier is Tier.DENY or verb not in policy_now.allow):
        return "The policy no longer allows this call."
    return None
