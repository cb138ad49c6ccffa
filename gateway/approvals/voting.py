"""Record approval votes on an item, and authorize it when the quorum is reached."""

from __future__ import annotations

from keyturn.gateway.approvals import membership, permission, quorum, timing
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decision_context import (
    DecisionContext,
    event_of,
    listed,
    reopened,
)
from keyturn.gateway.approvals.decisions import Forbidden, Refusal, Voted
from keyturn.gateway.approvals.editing import reading_of
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.raising import keeping_floor
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Vote
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.verbs import Verb

_OUTLIVED = (
    "The policy now gives such a call less time, and this one has waited longer, so "
    "nobody can approve it any more. Reject it, or let it expire; the agent can ask "
    "again."
)
_UNREAD = (
    "The tool would not run with exactly these arguments, so nobody can approve them. "
    "Edit the call or reject it."
)


def is_counted(context: DecisionContext, item: Item) -> bool:
    """Return True if this person's vote stands and would count for no more now.

    Who was given another role since, or whose role Slack did not know at the time, may
    vote again: the new vote takes the place of the old one.
    """
    person, action_hash = context.reviewer.person, item.action_hash
    if not quorum.has_voted(item.votes, person, action_hash):
        return False
    if quorum.tally(item.requirement, item.votes, action_hash).is_met:
        return False  # more were needed when they voted; nobody else is now
    if quorum.has_voted(votes_of_others(item, person), person, action_hash):
        return True
    counted = {
        name
        for vote in item.votes
        if vote.action_hash == action_hash and vote.by.is_same(person)
        for name in vote.roles
    }
    return counted.issuperset(quorum.roles_of(context.reviewer, item.requirement.roles))


def votes_of_others(item: Item, person: Person) -> tuple[Vote, ...]:
    """Return the votes for an item that somebody else gave."""
    return tuple(vote for vote in item.votes if not vote.by.is_same(person))


def vote(
    context: DecisionContext, item: Item, verb: Verb, text: str
) -> Change | Refusal:
    """Count an approval; authorize the item when nobody else is needed.

    Args:
        context: what the decision is made over.
        item: as it would run now, with what the policy of now asks for.
        verb: APPROVE, or EDIT when the reviewer changed the arguments.
        text: the reviewer's reason.
    """
    why_not = _UNREAD if reading_of(item) else _outlived(context)
    if why_not:
        return Forbidden(reason=why_not)
    roles = item.requirement.roles
    # Asked of everybody who handed their queue over, not of those alone whose roles
    # count: one of the others may hold a role that Slack left open.
    if unresolved := membership.unresolved_roles(context.resolved, roles):
        return Forbidden(
            reason=membership.unresolved_reason(unresolved, [context.resolved])
        )
    is_edited = item.action != context.item.action
    # Buttons carry the version: with a new one every click on the old card is refused.
    version = context.approval.version + (1 if is_edited else 0)
    vote = context.vote(item, roles, text if verb is Verb.APPROVE else "", verb=verb)
    barred = permission.editors(context.item, item.requirement)
    # A second vote of a person takes the place of their first; it never adds one.
    others = votes_of_others(item, vote.by)
    # Somebody may have voted before they changed the call, or before the policy barred
    # editors.
    before = tuple(one for one in others if not quorum.is_among(one.by, barred))
    earlier = before
    count = quorum.tally(item.requirement, (*earlier, vote), item.action_hash)
    # Earlier voters are asked again only when this vote would be the last: that takes
    # answers of Slack's, which limits how often it is asked.
    if count.is_met and before:
        doubtful = quorum.doubtful_roles(before, context.voters, roles)
        # Unknown is not lost: the vote stays, nothing is recorded, and the person
        # clicks again.
        if doubtful:
            return Forbidden(
                reason=membership.unresolved_reason(doubtful, context.voters)
            )
        earlier = quorum.asked_again(before, context.voters, roles)
        count = quorum.tally(item.requirement, (*earlier, vote), item.action_hash)
    lost = [
        one.by
        for one in before
        if not quorum.has_voted(earlier, one.by, one.action_hash)
    ]
    # Votes that count no more leave the record here, so a claim does not count them
    # either.
    item = item.with_(votes=(*earlier, vote))
    events = list[Event]()
    if is_edited:
        events.append(event_of(context, item, EventName.ITEM_EDITED, version))
    if count.is_met:
        word = Verb.EDIT if item.edit else verb
        item = item.moved(
            Transition.AUTHORIZE,
            context.now_ms,
            lapses_at_ms=context.lapses_at_ms,
            decision=context.decision_record(word, text),
        )
    elif not is_edited:
        item = keeping_floor(context.item, item, context.policy_now)
    approval = reopened(context, item, version)
    name = EventName.ITEM_AUTHORIZED if count.is_met else EventName.ITEM_VOTED
    last = event_of(context, item, name, version, reason=text)
    if lost:
        last = last.with_(data=last.data | {"no_longer": listed(lost)})
    voted = None
    if not count.is_met:
        voted = Voted(
            approval=approval, index=item.index, have=count.have, need=count.need
        )
    return pending_change(context, approval, (*events, last), voted)


def _outlived(context: DecisionContext) -> str:
    """Return why a call cannot be approved that waited longer than its tier may now.

    What was raised waits from then on as the stricter tier lets it; see `reopened`.
    """
    approval, item, policy_now = context.approval, context.item, context.policy_now
    # With a `latest_at_ms` the deadline was shortened already when the call was raised.
    if policy_now is None or not policy_now.ttl_ms or item.latest_at_ms:
        return ""
    is_same = policy_now.tier is item.tier and policy_now.ttl_ms < approval.ttl_ms
    end_ms = timing.end_ms(approval, item, ttl_ms=policy_now.ttl_ms)
    return _OUTLIVED if is_same and context.now_ms >= end_ms else ""


def pending_change(
    context: DecisionContext,
    approval: Approval,
    events: tuple[Event, ...],
    voted: Voted | None = None,
) -> Change:
    """Return a decision on a waiting call; it counts only in time."""
    return Change(
        approval,
        events,
        voted,
        before_ms=timing.end_of(context.approval, context.item),
        resumes=voted is None,
    )
