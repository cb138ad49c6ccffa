"""Rules of standing approvals: what one covers, how uses are counted, how it ends.

It covers a call that the policy gives to people, if exactly those who gave it could
have approved that call. What the policy escalates, denies or freezes, and a call that
one of the givers asked for, goes the way of any other call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change, by_gateway
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.events import Event, EventName, approval_event
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.approvals.similar import Bounds, Cover, Use, micro_text
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

CHECKED_FOR_MS = 10 * 60 * 1000
"""How long Slack's word on the roles of the givers is good for.

Without a newer one it covers nothing: nobody knows whether they still hold them.
"""

POLICY_CHANGED = "The policy changed."
USED_UP = "All that it allowed is used up."
ROLE_LOST = "A person who gave it does not hold the role any more."
FROZEN = "Its agent, its tool or everything was frozen."
REJECTED = "A similar call was rejected."
REVOKED = "It was revoked."
RESTORED = "The store was restored from an older copy, so its uses are not known."

_ENDS = {ItemState.PENDING: Transition.WITHDRAW, ItemState.AUTHORIZED: Transition.LAPSE}


@dataclass(frozen=True)
class Wanted:
    """A call that a standing approval may cover.

    Attributes:
        agent: who makes it.
        tool: which.
        args: the canonical arguments.
        evaluation: what the policy of now says of it.
        principals: who asked for it.
    """

    agent: str
    tool: str
    args: JsonObject
    evaluation: PolicyDecision
    principals: Sequence[Person]


def bounds_of(standing: Approval) -> Bounds:
    """Return what a standing approval allows.

    Raises:
        ValueError: for any other approval.
    """
    bounds = standing.items[0].bounds
    if bounds is None:
        raise ValueError(f"{standing.id!r} is no standing approval")
    return bounds


def givers(standing: Approval) -> tuple[Person, ...]:
    """Return who gave it, and in whose place."""
    votes = standing.items[0].votes_now
    return tuple(one for vote in votes for one in (vote.by, *vote.on_behalf_of))


def covered_amount(standing: Approval, call: Wanted, *, now_ms: int) -> int | None:
    """Return what a call would use of it, in millionths; None when it is not covered.

    Args:
        standing: as it stands.
        call: evaluated by the policy in force.
        now_ms: the store's clock.
    """
    bounds = bounds_of(standing)
    is_alike = (bounds.agent, bounds.tool) == (call.agent, call.tool)
    if not (is_alike and _is_in_force(standing, now_ms) and _may_cover(standing, call)):
        return None
    amount = bounds.amount_of(call.args)
    if amount is None or len(standing.uses) >= bounds.uses:
        return None
    return None if used_micro(standing) + amount > bounds.total_micro else amount


def _is_in_force(standing: Approval, now_ms: int) -> bool:
    item = standing.items[0]
    is_given = item.state is ItemState.AUTHORIZED and now_ms < item.lapses_at_ms
    checked_ms = max(standing.checked_at_ms, item.changed_at_ms)
    return is_given and now_ms - checked_ms <= CHECKED_FOR_MS


def _may_cover(standing: Approval, call: Wanted) -> bool:
    """Return whether those who gave it could have approved this call."""
    item, found = standing.items[0], call.evaluation
    # Another policy ends it. Its roles may also hold other people by the same names.
    if standing.policy_digest != found.policy_digest:
        return False
    if found.tier is not Tier.APPROVE or Verb.APPROVE not in found.allow:
        return False
    # A failure of such a call is put to people, while nobody waits with its agent.
    if found.asks_on_failure or found.is_question:
        return False
    if any(quorum.is_among(one, call.principals) for one in givers(standing)):
        return False
    if quorum.asks_more(found.requirement, item.requirement):
        return False
    return quorum.tally(found.requirement, item.votes_now, item.action_hash).is_met


def has_covered(standing: Approval, item: Item) -> bool:
    """Return whether what people gave allows a call, and was used for it.

    Compared before the call runs: the call names the standing approval, and a record
    may name any.
    """
    bounds, given = standing.items[0].bounds, standing.items[0]
    if bounds is None or item.tier is not Tier.APPROVE or item.edit is not None:
        return False
    is_alike = (bounds.agent, bounds.tool) == (item.ctx.agent, item.tool)
    if not is_alike or bounds.amount_of(item.args) is None:
        return False
    used_for = [use.item for use in standing.uses]
    is_within = len(used_for) <= bounds.uses and used_micro(standing) <= (
        bounds.total_micro
    )
    if used_for.count(item.id) != 1 or not is_within:
        return False
    return quorum.tally(item.requirement, given.votes_now, given.action_hash).is_met


def used_micro(standing: Approval) -> int:
    """Return the total of what it was used for, in millionths."""
    return sum(use.amount_micro for use in standing.uses)


def left_of(standing: Approval) -> tuple[int, int]:
    """Return the uses that are left, and the amount in millionths."""
    bounds = bounds_of(standing)
    total = max(0, bounds.total_micro - used_micro(standing))
    return max(0, bounds.uses - len(standing.uses)), total


def used(
    standing: Approval, item_id: str, amount_micro: int, now_ms: int
) -> tuple[Approval, Cover]:
    """Return the record with one more use, and what the call keeps of it.

    The store writes both in the step that opens the call, if the record still has the
    ``rev`` that was read; the script counts that on.
    """
    use = Use(item=item_id, amount_micro=amount_micro, at_ms=now_ms)
    after = standing.with_(uses=(*standing.uses, use))
    uses_left, total_left = left_of(after)
    cover = Cover(
        approval=standing.id,
        given_by=givers(standing),
        uses_left=uses_left,
        total_left_micro=total_left,
    )
    return after, cover


def event_data(cover: Cover) -> dict[str, str]:
    """Return what the audit log says of a use: who gave it, and what it left."""
    found = {
        "given_by": " ".join(f"{one.team}/{one.user}" for one in cover.given_by),
        "uses_left": str(cover.uses_left),
    }
    if cover.total_left_micro:
        found["total_left"] = micro_text(cover.total_left_micro)
    return found


def use_event(standing: Approval, item_id: str, cover: Cover) -> Event:
    """Return the event that a standing approval was used: its card has to tell."""
    event = approval_event(standing, EventName.APPROVAL_USED, standing.items[0])
    return event.with_(data={**event_data(cover), "item": item_id})


def end_reason(standing: Approval, policy_digest: str) -> str:
    """Return why it has to end by itself; "" while it stands."""
    if standing.policy_digest != policy_digest:
        return POLICY_CHANGED
    uses, total = left_of(standing)
    is_empty = bool(bounds_of(standing).amount) and not total
    return USED_UP if is_empty or not uses else ""


def is_about(standing: Approval, item: Item) -> bool:
    """Return whether a call is similar to those that it covers, whatever its amount."""
    bounds = bounds_of(standing)
    is_alike = (bounds.agent, bounds.tool) == (item.ctx.agent, item.tool)
    # By the arguments that were asked for, too: an edit may have made it another call.
    return is_alike and any(
        bounds.has_equals(args) for args in (item.args, item.requested_args)
    )


def still_given(standing: Approval, people: Sequence[Reviewer]) -> bool | None:
    """Return whether its givers still hold their roles; None when Slack did not say.

    Args:
        standing: one that is in force.
        people: its voters as resolved now, with those for whom they act.
    """
    item = standing.items[0]
    votes, roles = item.votes_now, item.requirement.roles
    asked = [one for person in people for one in (person, *person.stands_in_for)]
    if any(one.account is AccountKind.UNKNOWN for one in asked):
        return None
    if quorum.doubtful_roles(votes, people, roles):
        return None
    kept = quorum.asked_again(votes, people, roles)
    return quorum.tally(item.requirement, kept, item.action_hash).is_met


def end(
    standing: Approval, reason: str, now_ms: int, *, by: Reviewer | None = None
) -> Change | None:
    """End it for good, or take its proposal back; None when it has ended.

    Args:
        standing: as it stands.
        reason: a sentence of ours.
        now_ms: the store's clock.
        by: who ended it; None for the gateway itself.
    """
    item = standing.items[0]
    transition = _ENDS.get(item.state)
    if transition is None:
        return None
    person = by.person if by else None
    why = Revocation(reason=reason, at_ms=now_ms, is_final=True, by=person)
    change = by_gateway(standing, item.moved(transition, now_ms, revoked=why))
    if by is None or person is None:
        return change
    event = change.events[0].with_(
        actor=f"{person.team}/{person.user}", data={"gesture": by.gesture.value}
    )
    return Change(change.approval, (event,))


def was_taken_back(standing: Approval | None) -> bool:
    """Return whether calls that it covered, and that did not start, may not run.

    Time that ran out or uses that are used up take nothing back.
    """
    if standing is None:
        return True
    item = standing.items[0]
    revoked = item.revoked
    return item.state is not ItemState.AUTHORIZED and (
        revoked is not None and revoked.reason != USED_UP
    )
