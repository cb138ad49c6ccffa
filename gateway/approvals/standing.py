"""Rules of standing approvals: coverage, uses and ends.

A standing approval covers a call that needs people, if exactly its givers could have
approved that call. It does not cover a call that the policy escalates, denies or
freezes, or that one of the givers asked for: such a call is handled like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change, by_person, ended
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.events import Event, EventName, approval_event
from keyturn.gateway.approvals.lifecycle import ENDS
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.similar import Bounds, Cover, Use, micro_text
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

CHECKED_FOR_MS = 10 * 60 * 1000
"""Validity of Slack's answers about the roles of the givers.

Without a newer answer it covers no call: the givers may have lost their roles.
"""

POLICY_CHANGED = "The policy changed."
USED_UP = "All that it allowed is used up."
ROLE_LOST = "A person who gave it does not hold the role any more."
FROZEN = "Its agent, its tool or everything was frozen."
REJECTED = "A similar call was rejected."
REVOKED = "It was revoked."
RESTORED = "The store was restored from an older copy, so its uses are not known."


@dataclass(frozen=True)
class Wanted:
    """A call that a standing approval may cover.

    Attributes:
        agent: of the call.
        tool: of the call.
        args: the canonical arguments.
        evaluation: the current policy's decision on it.
        principals: the people who asked for it.
    """

    agent: str
    tool: str
    args: JsonObject
    evaluation: PolicyDecision
    principals: Sequence[Person]


def bounds_of(standing: Approval) -> Bounds:
    """Return the bounds of a standing approval.

    Raises:
        ValueError: for any other approval.
    """
    bounds = standing.items[0].bounds
    if bounds is None:
        raise ValueError(f"{standing.id!r} is no standing approval")
    return bounds


def givers(standing: Approval) -> tuple[Person, ...]:
    """Return the people who gave it, including their delegators."""
    votes = standing.items[0].votes_now
    return tuple(one for vote in votes for one in (vote.by, *vote.on_behalf_of))


def covered_amount(standing: Approval, call: Wanted, *, now_ms: int) -> int | None:
    """Return the amount that a covered call would use, in millionths; else None.

    Args:
        standing: the current record.
        call: evaluated by the current policy.
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
    """Return True if the givers could have approved this call."""
    item, found = standing.items[0], call.evaluation
    # Another policy ends it: under the same names its roles may have other people.
    if standing.policy_digest != found.policy_digest:
        return False
    if found.tier is not Tier.APPROVE or Verb.APPROVE not in found.allow:
        return False
    # A failure of such a call goes to people, but here no agent waits for them.
    if found.asks_on_failure or found.is_question:
        return False
    if any(quorum.is_among(one, call.principals) for one in givers(standing)):
        return False
    if quorum.asks_more(found.requirement, item.requirement):
        return False
    return quorum.tally(found.requirement, item.votes_now, item.action_hash).is_met


def has_covered(standing: Approval, item: Item) -> bool:
    """Return True if the standing approval covers the call and lists it as a use.

    Checked before the call runs: the call's record names the standing approval, and
    could name any.
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
    """Return the total amount of its uses, in millionths."""
    return sum(use.amount_micro for use in standing.uses)


def left_of(standing: Approval) -> tuple[int, int]:
    """Return the remaining uses, and the remaining amount in millionths."""
    bounds = bounds_of(standing)
    total = max(0, bounds.total_micro - used_micro(standing))
    return max(0, bounds.uses - len(standing.uses)), total


def used(
    standing: Approval, item_id: str, amount_micro: int, now_ms: int
) -> tuple[Approval, Cover]:
    """Return the record with one more use, and the cover to store in the call.

    The store writes both in the step that opens the call, if ``rev`` is unchanged since
    the read; the script increments it.
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
    """Return the givers and the rest of a use, as data for the audit log."""
    found = {
        "given_by": " ".join(f"{one.team}/{one.user}" for one in cover.given_by),
        "uses_left": str(cover.uses_left),
    }
    if cover.total_left_micro:
        found["total_left"] = micro_text(cover.total_left_micro)
    return found


def use_event(standing: Approval, item_id: str, cover: Cover) -> Event:
    """Return the event of a use: its card has to show it."""
    event = approval_event(standing, EventName.APPROVAL_USED, standing.items[0])
    return event.with_(data={**event_data(cover), "item": item_id})


def end_reason(standing: Approval, policy_digest: str) -> str:
    """Return why it has to end by itself; "" while it remains valid."""
    if standing.policy_digest != policy_digest:
        return POLICY_CHANGED
    uses, total = left_of(standing)
    is_empty = bool(bounds_of(standing).amount) and not total
    return USED_UP if is_empty or not uses else ""


def is_about(standing: Approval, item: Item) -> bool:
    """Return True if a call is similar to the covered ones; ignores the amount."""
    bounds = bounds_of(standing)
    is_alike = (bounds.agent, bounds.tool) == (item.ctx.agent, item.tool)
    # Check the requested arguments, too: an edit may have made it another call.
    return is_alike and any(
        bounds.has_equals(args) for args in (item.args, item.requested_args)
    )


def still_given(standing: Approval, people: Sequence[Reviewer]) -> bool | None:
    """Return True if its givers still have their roles; None if Slack cannot confirm.

    Args:
        standing: in force.
        people: its voters as resolved now, with their delegators.
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
    """End it for good, or withdraw its proposal; None if it has ended.

    Args:
        standing: the current record.
        reason: a sentence of Keyturn.
        now_ms: the store's clock.
        by: the person who ended it; None for the gateway itself.
    """
    item = standing.items[0]
    transition = ENDS.get(item.state)
    if transition is None:
        return None
    person = by.person if by else None
    change = ended(standing, item, transition, reason, now_ms, by=person)
    if by is None:
        return change
    return replace(change, events=tuple(by_person(one, by) for one in change.events))


def was_taken_back(standing: Approval | None) -> bool:
    """Return True if covered calls that have not started may not run.

    Calls stay covered after its time is over or its uses are used up.
    """
    if standing is None:
        return True
    item = standing.items[0]
    revoked = item.revoked
    return item.state is not ItemState.AUTHORIZED and (
        revoked is not None and revoked.reason != USED_UP
    )
