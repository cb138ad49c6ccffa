"""Settle an execution in doubt: a person looked, and says what they found."""

from __future__ import annotations

from gateway.approvals import membership, quorum
from gateway.approvals.changes import Change, Frame, event_of, following
from gateway.approvals.decisions import (
    Changed,
    Finding,
    Forbidden,
    Reconcile,
    Refusal,
    Stale,
)
from gateway.approvals.events import EventName
from gateway.approvals.lifecycle import ItemState, Move, advance
from gateway.approvals.record import Verb, Vote
from gateway.approvals.tiers import Tier


def reconcile(frame: Frame, decision: Reconcile) -> Change | Refusal:
    """Settle an execution in doubt as a person found it, or have it run again."""
    approval, item = frame.approval, frame.item
    if item.state is not ItemState.IN_DOUBT:
        return Stale(
            state=item.state, settlement=item.settlement, at_ms=item.changed_at_ms
        )
    if frame.click.action_hash != item.action_hash:
        return Changed(seen_version=frame.click.version, version=approval.version)
    objection = quorum.objection(
        frame.reviewer, item.demand, approval.principals, item.principals
    )
    if objection is None and decision.finding is Finding.RERUN:
        objection = _no_rerun(frame)
    if objection is not None:
        return Forbidden(reason=objection)
    move = {
        Finding.EXECUTED: Move.EXECUTE,
        Finding.RERUN: Move.RETRY,
        Finding.SKIP: Move.FAIL,
    }[decision.finding]
    settled = item.with_(state=advance(item.state, move), changed_at_ms=frame.now_ms)
    event = event_of(frame, settled, EventName.ITEM_RECONCILED, approval.version)
    event = event.with_(reason=decision.finding.value)
    return Change(following(approval, settled), settled, (event,))


def _no_rerun(frame: Frame) -> str | None:
    """Say why one person may not have this run again; None when they may.

    That is what one person alone could have approved, then and by the policy of now.
    """
    item, judged = frame.item, frame.judged
    if judged and judged.stopped:
        return judged.stopped
    verb = item.settlement.verb if item.settlement else Verb.APPROVE
    if judged and (judged.tier is Tier.DENY or verb not in judged.allow):
        return "The policy no longer allows this call at all."
    demand = frame.demand
    objection = quorum.objection(frame.reviewer, demand, ())
    if objection is not None:
        return objection
    alone = Vote(
        by=frame.reviewer.person,
        roles=quorum.roles_of(frame.reviewer, demand.roles),
        action_hash=item.action_hash,
        at_ms=frame.now_ms,
    )
    if not quorum.tally(demand, (alone,), item.action_hash).is_met:
        if left_open := membership.open_roles(frame.resolved, demand.roles):
            return membership.not_told(left_open, [frame.resolved])
        return (
            "This call needs more than one person, so one alone cannot have it run "
            "again. Say that it ran or leave it; the agent can ask anew."
        )
    return None
